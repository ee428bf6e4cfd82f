import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What the checks of one suite share: the broker's address, clients, assertions and the report. */
final class Session implements AutoCloseable {
    static final int PATIENCE_MS = 20_000;

    interface Check {
        /** Throws when the broker behaves wrongly; the returned text is shown beside the check. */
        String run() throws Exception;
    }

    interface Question {
        Object ask() throws Exception;
    }

    interface Action {
        void run() throws Exception;
    }

    /** The client at hand has no such call. */
    static final class Skipped extends Exception {
        private static final long serialVersionUID = 1L;

        Skipped(String why) {
            super(why);
        }
    }

    private final String bootstrap;
    private final String suite;
    private final Admin admin;
    private boolean passed = true;
    private int topics;

    Session(String bootstrap, String suite) {
        this.bootstrap = bootstrap;
        this.suite = suite;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("request.timeout.ms", PATIENCE_MS);
        settings.put("default.api.timeout.ms", PATIENCE_MS);
        this.admin = Admin.create(settings);
    }

    boolean passed() {
        return passed;
    }

    Admin admin() {
        return admin;
    }

    void check(String name, Check check) {
        long started = System.nanoTime();
        String verdict = "passed";
        String detail;
        try {
            detail = check.run();
        } catch (Skipped skipped) {
            verdict = "skipped";
            detail = skipped.getMessage();
        } catch (Throwable problem) {
            Throwable cause = problem instanceof ExecutionException ? problem.getCause() : problem;
            verdict = "failed";
            detail = cause.getClass().getSimpleName() + ": " + cause.getMessage();
            passed = false;
        }
        long millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started);
        String line = String.join("\t", suite, name, verdict, Long.toString(millis), oneLine(detail));
        System.out.println(line);
        System.out.flush();
    }

    private static String oneLine(String text) {
        return text == null ? "" : text.replaceAll("\\s+", " ");
    }

    /** A new topic with a name of its own, once every partition has a leader that answers. */
    String topic(int partitions, Map<String, String> configs) throws Exception {
        String name = freshName();
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all());
        Map<TopicPartition, OffsetSpec> places = new HashMap<>();
        for (int partition = 0; partition < partitions; partition++) {
            places.put(new TopicPartition(name, partition), OffsetSpec.latest());
        }
        eventually("every partition answers", true, () -> {
            try {
                return get(admin.listOffsets(places).all()).size() == partitions;
            } catch (ExecutionException notYet) {
                return notYet.getCause();
            }
        });
        return name;
    }

    /** Repeat a question until it has the expected answer. */
    static void eventually(String what, Object expected, Question question) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        Object answer = question.ask();
        while (!Objects.deepEquals(expected, answer) && System.nanoTime() < deadline) {
            Thread.sleep(20);
            answer = question.ask();
        }
        equal(what, expected, answer);
    }

    long endOffset(String topic, int partition) throws Exception {
        TopicPartition place = new TopicPartition(topic, partition);
        return get(admin.listOffsets(Map.of(place, OffsetSpec.latest())).partitionResult(place)).offset();
    }

    String freshName() {
        return "interop-" + suite + "-" + Long.toHexString(System.nanoTime()) + "-" + topics++;
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("max.block.ms", PATIENCE_MS);
        settings.put("request.timeout.ms", PATIENCE_MS);
        settings.put("delivery.timeout.ms", PATIENCE_MS + 5_000);
        settings.put("linger.ms", 5);
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", false);
        settings.put("default.api.timeout.ms", PATIENCE_MS);
        settings.put("request.timeout.ms", PATIENCE_MS);
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** All records of a partition from its beginning to its end. */
    List<ConsumerRecord<byte[], byte[]>> readAll(String topic, int partition, Map<String, Object> more) {
        TopicPartition place = new TopicPartition(topic, partition);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(more)) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            return poll(consumer, place, end);
        }
    }

    /** Poll until the position of the partition has reached an offset. */
    List<ConsumerRecord<byte[], byte[]>> poll(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition place, long end) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (consumer.position(place) < end) {
            consumer.poll(Duration.ofMillis(200)).records(place).forEach(found::add);
            if (System.nanoTime() > deadline) {
                throw new AssertionError(
                    "position " + consumer.position(place) + " never reached " + end);
            }
        }
        return found;
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    static void equal(String what, Object expected, Object actual) {
        if (!Objects.deepEquals(expected, actual)) {
            throw new AssertionError(what + " is " + actual + ", not " + expected);
        }
    }

    static void that(String claim, boolean holds) {
        if (!holds) {
            throw new AssertionError("not so: " + claim);
        }
    }

    /** The action must fail with this exception, directly or as the cause of a failed future. */
    static void fails(Class<? extends Throwable> expected, Action action) throws Exception {
        try {
            action.run();
        } catch (ExecutionException wrapped) {
            same(expected, wrapped.getCause());
            return;
        } catch (Exception direct) {
            same(expected, direct);
            return;
        }
        throw new AssertionError("no " + expected.getSimpleName());
    }

    private static void same(Class<? extends Throwable> expected, Throwable actual) {
        if (!expected.isInstance(actual)) {
            throw new AssertionError(
                actual.getClass().getSimpleName() + " (" + actual.getMessage() + ") instead of "
                    + expected.getSimpleName());
        }
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(2));
    }
}
