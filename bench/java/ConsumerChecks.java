import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** KafkaConsumer with partitions it has assigned to itself. */
final class ConsumerChecks {
    private static final int COUNT = 1_000;

    private ConsumerChecks() {
    }

    static void run(Session session) throws Exception {
        String topic = session.topic(2, Map.of());
        try (KafkaProducer<byte[], byte[]> producer =
                session.producer(Map.of("batch.size", 2_000, "compression.type", "lz4"))) {
            for (int number = 0; number < COUNT; number++) {
                producer.send(ProducerChecks.sample(topic, 0, number));
            }
        }
        TopicPartition full = new TopicPartition(topic, 0);
        TopicPartition empty = new TopicPartition(topic, 1);
        session.check("assign and read from the beginning", () -> readAll(session, full, Map.of()));
        session.check("read_committed", () ->
            readAll(session, full, Map.of("isolation.level", "read_committed")));
        session.check("small fetches", () ->
            readAll(session, full, Map.of("max.partition.fetch.bytes", 3_000, "fetch.max.bytes", 3_000)));
        session.check("a few records a poll", () -> fewAtATime(session, full));
        session.check("seek", () -> seek(session, full));
        session.check("seekToEnd and wait for the next", () -> tail(session, empty));
        session.check("seek beyond the end", () -> outOfRange(session, full));
        session.check("beginningOffsets, endOffsets", () -> offsets(session, full, empty));
        session.check("offsetsForTimes", () -> offsetsForTimes(session, full));
        session.check("pause and resume", () -> pauseAndResume(session, full));
        session.check("listTopics, partitionsFor", () -> topics(session, topic));
        session.check("fetch.min.bytes and fetch.max.wait.ms", () -> longPoll(session, empty));
    }

    private static String readAll(Session session, TopicPartition place, Map<String, Object> settings)
            throws Exception {
        List<ConsumerRecord<byte[], byte[]>> found =
            session.readAll(place.topic(), place.partition(), settings);
        Session.equal("number of records", COUNT, found.size());
        for (int number = 0; number < COUNT; number++) {
            Session.equal("offset", (long) number, found.get(number).offset());
            Session.that("the leader epoch is known", found.get(number).leaderEpoch().isPresent());
            ProducerChecks.same(ProducerChecks.sample(place.topic(), 0, number), found.get(number));
        }
        return COUNT + " records";
    }

    private static String fewAtATime(Session session, TopicPartition place) {
        int polls = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of("max.poll.records", 7))) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            int found = 0;
            while (found < COUNT) {
                int some = consumer.poll(Duration.ofMillis(Session.PATIENCE_MS)).count();
                Session.that("at most seven", some > 0 && some <= 7);
                found += some;
                polls++;
            }
            Session.equal("records", COUNT, found);
        }
        return polls + " polls";
    }

    private static String seek(Session session, TopicPartition place) {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of())) {
            consumer.assign(List.of(place));
            for (long offset : new long[] {999, 0, 500, 123, 998}) {
                consumer.seek(place, offset);
                ConsumerRecord<byte[], byte[]> first =
                    consumer.poll(Duration.ofMillis(Session.PATIENCE_MS)).records(place).get(0);
                Session.equal("offset", offset, first.offset());
            }
        }
        return "";
    }

    private static String tail(Session session, TopicPartition place) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of());
                KafkaProducer<byte[], byte[]> producer = session.producer(Map.of("linger.ms", 0))) {
            consumer.assign(List.of(place));
            consumer.seekToEnd(List.of(place));
            long next = consumer.position(place);
            for (int turn = 0; turn < 20; turn++) {
                producer.send(new ProducerRecord<>(place.topic(), place.partition(), null, new byte[] {1})).get();
                List<ConsumerRecord<byte[], byte[]>> found =
                    consumer.poll(Duration.ofMillis(Session.PATIENCE_MS)).records(place);
                Session.equal("records", 1, found.size());
                Session.equal("offset", next++, found.get(0).offset());
            }
        }
        return "20 times";
    }

    private static String outOfRange(Session session, TopicPartition place) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of())) {
            consumer.assign(List.of(place));
            consumer.seek(place, 1_000_000);
            Session.fails(OffsetOutOfRangeException.class, () -> {
                long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
                while (System.nanoTime() < deadline) {
                    consumer.poll(Duration.ofMillis(200));
                }
            });
        }
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of("auto.offset.reset", "earliest"))) {
            consumer.assign(List.of(place));
            consumer.seek(place, 1_000_000);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
            List<ConsumerRecord<byte[], byte[]>> found = List.of();
            while (found.isEmpty() && System.nanoTime() < deadline) {
                found = consumer.poll(Duration.ofMillis(200)).records(place);
            }
            Session.equal("offset after the reset", 0L, found.get(0).offset());
        }
        return "OffsetOutOfRangeException; reset to earliest";
    }

    private static String offsets(Session session, TopicPartition full, TopicPartition empty) {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of())) {
            Map<TopicPartition, Long> first = consumer.beginningOffsets(List.of(full, empty));
            Map<TopicPartition, Long> last = consumer.endOffsets(List.of(full, empty));
            Session.equal("beginning", 0L, first.get(full));
            Session.equal("end", (long) COUNT, last.get(full));
            Session.equal("beginning of the other", 0L, first.get(empty));
        }
        return "";
    }

    private static String offsetsForTimes(Session session, TopicPartition place) {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of())) {
            long start = ProducerChecks.HOUR_AGO;
            for (int number : new int[] {0, 1, 499, 998, 999}) {
                // Half a second before record `number`: the first record not older than that.
                OffsetAndTimestamp found =
                    consumer.offsetsForTimes(Map.of(place, start + number * 1_000L - 500)).get(place);
                Session.equal("offset", (long) number, found.offset());
                Session.equal("timestamp", start + number * 1_000L, found.timestamp());
            }
            Session.equal("beyond the last record", null,
                consumer.offsetsForTimes(Map.of(place, start + COUNT * 1_000L)).get(place));
        }
        return "";
    }

    private static String pauseAndResume(Session session, TopicPartition place) {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of())) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            consumer.pause(List.of(place));
            Session.equal("records while paused", 0, consumer.poll(Duration.ofMillis(300)).count());
            consumer.resume(List.of(place));
            Session.that("records afterwards",
                consumer.poll(Duration.ofMillis(Session.PATIENCE_MS)).count() > 0);
        }
        return "";
    }

    private static String topics(Session session, String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of())) {
            Session.equal("partitions", 2, consumer.partitionsFor(topic).size());
            Session.that("the list has the topic", consumer.listTopics().containsKey(topic));
        }
        return "";
    }

    private static String longPoll(Session session, TopicPartition place) {
        Map<String, Object> settings = Map.of("fetch.min.bytes", 1_000_000, "fetch.max.wait.ms", 700);
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(settings)) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            consumer.position(place);
            long started = System.nanoTime();
            int found = consumer.poll(Duration.ofMillis(Session.PATIENCE_MS)).count();
            long millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started);
            Session.that("the broker waits for more and then answers with what there is: " + millis + " ms",
                millis >= 600 && found > 0);
        }
        return "";
    }
}
