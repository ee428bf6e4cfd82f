import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Leaves transactions open, and ends them when told: {@code java OpenTransactions HOST:PORT PREFIX}.
 *
 * <p>Some transactions are ended at once, in several segments of partition 0: the records' times are an
 * hour apart. Then one transaction each is opened that is to be committed, to be aborted, has offsets, and
 * is left to its time-out, which is an argument. After a line on standard input the first three are ended,
 * the one to be committed with another record.
 */
public final class OpenTransactions {
    private static final String TOPIC = "taken";
    private static final int PATIENCE_MS = 300_000;
    private static final long HOUR_MS = 3_600_000;

    private final String bootstrap;
    private final String prefix;

    private OpenTransactions(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    // A group without members; since 4.2 clients would rather be given a consumer's own.
    @SuppressWarnings("removal")
    public static void main(String[] arguments) throws Exception {
        OpenTransactions self = new OpenTransactions(arguments[0], arguments[1]);
        self.ended();
        KafkaProducer<byte[], byte[]> commits = self.producer("commits", PATIENCE_MS);
        KafkaProducer<byte[], byte[]> aborts = self.producer("aborts", PATIENCE_MS);
        KafkaProducer<byte[], byte[]> offsets = self.producer("offsets", PATIENCE_MS);
        KafkaProducer<byte[], byte[]> gone = self.producer("gone", Integer.parseInt(arguments[2]));
        long now = System.currentTimeMillis();
        commits.beginTransaction();
        self.send(commits, 0, "commits-before", now);
        aborts.beginTransaction();
        self.send(aborts, 0, "aborts", now);
        self.send(aborts, 1, "aborts", now);
        offsets.beginTransaction();
        self.send(offsets, 1, "offsets", now);
        offsets.sendOffsetsToTransaction(Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(7)),
            new ConsumerGroupMetadata(self.prefix + "group"));
        gone.beginTransaction();
        self.send(gone, 1, "gone", now);
        System.out.println("open");
        System.out.flush();
        if (new BufferedReader(new InputStreamReader(System.in, UTF_8)).readLine() != null) {
            self.send(commits, 0, "commits-after", now);
            commits.commitTransaction();
            aborts.abortTransaction();
            offsets.commitTransaction();
            // The next transaction of a producer is like any other.
            commits.beginTransaction();
            self.send(commits, 0, "commits-next", now);
            commits.commitTransaction();
            System.out.println("ended");
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private void ended() throws Exception {
        long begin = System.currentTimeMillis() - 24 * HOUR_MS;
        try (KafkaProducer<byte[], byte[]> producer = producer("ended", PATIENCE_MS)) {
            for (int turn = 0; turn < 6; turn++) {
                producer.beginTransaction();
                send(producer, 0, (turn % 2 == 0 ? "committed-" : "aborted-") + turn, begin + turn * HOUR_MS);
                if (turn % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
    }

    private KafkaProducer<byte[], byte[]> producer(String name, int timeoutMs) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", prefix + name);
        settings.put("transaction.timeout.ms", timeoutMs);
        settings.put("delivery.timeout.ms", PATIENCE_MS);
        settings.put("max.block.ms", PATIENCE_MS);
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        return producer;
    }

    private void send(KafkaProducer<byte[], byte[]> producer, int partition, String value, long time)
            throws Exception {
        byte[] bytes = (prefix + value).getBytes(UTF_8);
        producer.send(new ProducerRecord<>(TOPIC, partition, time, null, bytes)).get();
    }
}
