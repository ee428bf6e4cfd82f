import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;

/** KafkaProducer: every codec, every kind of acknowledgement, with and without idempotence. */
final class ProducerChecks {
    /** When the first sample was made; what is older than a week is retention's to delete. */
    static final long HOUR_AGO = System.currentTimeMillis() - 3_600_000L;
    private static final int COUNT = 200;
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    private ProducerChecks() {
    }

    static void run(Session session) throws Exception {
        for (String codec : CODECS) {
            for (String acks : List.of("0", "1", "all")) {
                session.check(codec + ", acks=" + acks, () -> roundTrip(session, codec, acks, false));
            }
            session.check(codec + ", idempotent", () -> roundTrip(session, codec, "all", true));
        }
        session.check("idempotent, many partitions in flight", () -> manyPartitions(session));
        session.check("keys go where they belong", () -> keysStay(session));
        session.check("a record of 1 MB", () -> largeRecord(session));
        session.check("a record that is too large", () -> tooLarge(session));
        session.check("a topic made by the first record", () -> autoCreated(session));
        session.check("a topic name that is not allowed", () -> badName(session));
        session.check("log append time", () -> appendTime(session));
        session.check("partitionsFor", () -> partitionsFor(session));
    }

    /** A record of every shape: null or empty key and value, no, one or several headers. */
    static ProducerRecord<byte[], byte[]> sample(String topic, int partition, int number) {
        byte[] key = number % 3 == 0 ? null : ("key-" + number % 17).getBytes(UTF_8);
        byte[] value = number % 11 == 0 ? null : number % 13 == 0 ? new byte[0]
            : ("value " + number + " ").repeat(1 + number % 9).getBytes(UTF_8);
        long timestamp = HOUR_AGO + number * 1_000L;
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(topic, partition, timestamp, key, value);
        for (int header = 0; header < number % 4; header++) {
            record.headers().add("h" + header, header == 2 ? null : new byte[] {(byte) number});
        }
        return record;
    }

    static void same(ProducerRecord<byte[], byte[]> sent, ConsumerRecord<byte[], byte[]> got) {
        Session.equal("key", sent.key(), got.key());
        Session.equal("value", sent.value(), got.value());
        Session.equal("timestamp", sent.timestamp(), got.timestamp());
        Session.equal("timestamp type", TimestampType.CREATE_TIME, got.timestampType());
        Header[] before = sent.headers().toArray();
        Header[] after = got.headers().toArray();
        Session.equal("number of headers", before.length, after.length);
        for (int index = 0; index < before.length; index++) {
            Session.equal("header name", before[index].key(), after[index].key());
            Session.equal("header value", before[index].value(), after[index].value());
        }
    }

    private static String roundTrip(Session session, String codec, String acks, boolean idempotent)
            throws Exception {
        String topic = session.topic(1, Map.of());
        Map<String, Object> settings = new HashMap<>();
        settings.put("compression.type", codec);
        settings.put("acks", acks);
        settings.put("enable.idempotence", idempotent);
        settings.put("batch.size", 2_000);
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = session.producer(settings)) {
            for (int number = 0; number < COUNT; number++) {
                answers.add(producer.send(sample(topic, 0, number)));
            }
        }
        for (int number = 0; number < COUNT; number++) {
            RecordMetadata answer = answers.get(number).get(1, TimeUnit.SECONDS);
            Session.equal("partition", 0, answer.partition());
            if (acks.equals("0")) {
                Session.that("acks=0 learns no offset", !answer.hasOffset());
            } else {
                Session.equal("offset", (long) number, answer.offset());
            }
        }
        // Without acknowledgements nobody says when the last one has arrived.
        Session.eventually("end offset", (long) COUNT, () -> session.endOffset(topic, 0));
        List<ConsumerRecord<byte[], byte[]>> found = session.readAll(topic, 0, Map.of());
        Session.equal("number of records", COUNT, found.size());
        for (int number = 0; number < COUNT; number++) {
            Session.equal("offset", (long) number, found.get(number).offset());
            same(sample(topic, 0, number), found.get(number));
        }
        return COUNT + " records there and back";
    }

    private static String manyPartitions(Session session) throws Exception {
        String topic = session.topic(12, Map.of());
        Map<String, Object> settings = Map.of("enable.idempotence", true, "batch.size", 1_000, "linger.ms", 0);
        List<Future<RecordMetadata>> answers = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = session.producer(settings)) {
            for (int number = 0; number < 6_000; number++) {
                answers.add(producer.send(sample(topic, number % 12, number)));
            }
        }
        for (int number = 0; number < 6_000; number++) {
            Session.equal("offset", (long) (number / 12), answers.get(number).get().offset());
        }
        for (int partition = 0; partition < 12; partition++) {
            List<ConsumerRecord<byte[], byte[]>> found = session.readAll(topic, partition, Map.of());
            Session.equal("records of partition " + partition, 500, found.size());
            for (int index = 0; index < found.size(); index++) {
                same(sample(topic, partition, index * 12 + partition), found.get(index));
            }
        }
        return "6,000 records, in order, once";
    }

    private static String keysStay(Session session) throws Exception {
        String topic = session.topic(8, Map.of());
        Map<String, Integer> places = new HashMap<>();
        Set<Integer> used = new HashSet<>();
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of())) {
            for (int number = 0; number < 400; number++) {
                String key = "key-" + number % 40;
                ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(topic, key.getBytes(UTF_8), new byte[] {1});
                int partition = producer.send(record).get().partition();
                used.add(partition);
                Integer before = places.putIfAbsent(key, partition);
                Session.that("a key keeps its partition", before == null || before == partition);
            }
        }
        return "40 keys on " + used.size() + " partitions";
    }

    private static String largeRecord(Session session) throws Exception {
        String topic = session.topic(1, Map.of("max.message.bytes", "2000000"));
        byte[] value = new byte[1_048_576];
        new Random(7).nextBytes(value);
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of("max.request.size", 3_000_000))) {
            producer.send(new ProducerRecord<>(topic, value)).get();
        }
        byte[] found = session.readAll(topic, 0, Map.of()).get(0).value();
        Session.that("the bytes are the same", Arrays.equals(value, found));
        return "";
    }

    private static String tooLarge(Session session) throws Exception {
        String topic = session.topic(1, Map.of("max.message.bytes", "10000"));
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of())) {
            Session.fails(RecordTooLargeException.class,
                () -> producer.send(new ProducerRecord<>(topic, new byte[50_000])).get());
            Session.equal("offset of the next", 0L,
                producer.send(new ProducerRecord<>(topic, new byte[100])).get().offset());
        }
        return "RecordTooLargeException; the next one is taken";
    }

    private static String autoCreated(Session session) throws Exception {
        String topic = session.freshName();
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of())) {
            Session.equal("offset", 0L, producer.send(new ProducerRecord<>(topic, new byte[1])).get().offset());
        }
        return "";
    }

    private static String badName(Session session) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of())) {
            Session.fails(InvalidTopicException.class,
                () -> producer.send(new ProducerRecord<>("not/allowed", new byte[1])).get());
        }
        return "InvalidTopicException";
    }

    private static String appendTime(Session session) throws Exception {
        String topic = session.topic(1, Map.of("message.timestamp.type", "LogAppendTime"));
        long before = System.currentTimeMillis();
        RecordMetadata answer;
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of("compression.type", "lz4"))) {
            answer = producer.send(new ProducerRecord<>(topic, 0, 1_000L, null, new byte[10])).get();
        }
        ConsumerRecord<byte[], byte[]> found = session.readAll(topic, 0, Map.of()).get(0);
        Session.equal("timestamp type", TimestampType.LOG_APPEND_TIME, found.timestampType());
        Session.that("the time is the broker's", found.timestamp() >= before - 1_000);
        Session.equal("timestamp in the answer", found.timestamp(), answer.timestamp());
        return "";
    }

    private static String partitionsFor(Session session) throws Exception {
        String topic = session.topic(3, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of())) {
            Session.equal("partitions", 3, producer.partitionsFor(topic).size());
            Session.that("every partition has a leader",
                producer.partitionsFor(topic).stream().allMatch(info -> info.leader() != null));
        }
        return "";
    }
}
