import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.utils.AppInfoParser;

/** KafkaConsumer in groups, with the classic protocol and with that of KIP-848. */
final class GroupChecks {
    private static final int PARTITIONS = 4;
    private static final int COUNT = 400;

    private GroupChecks() {
    }

    static void run(Session session) throws Exception {
        // The samples have times of long ago, which retention would not leave alone for long.
        String topic = session.topic(PARTITIONS, Map.of("retention.ms", "-1"));
        try (KafkaProducer<byte[], byte[]> producer = session.producer(Map.of())) {
            for (int number = 0; number < COUNT; number++) {
                producer.send(ProducerChecks.sample(topic, number % PARTITIONS, number));
            }
        }
        for (Map.Entry<String, Map<String, Object>> kind : kinds().entrySet()) {
            String name = kind.getKey();
            Map<String, Object> settings = kind.getValue();
            session.check(name + ": subscribe, commit, go on where it was", () -> {
                present(settings);
                return goOn(session, topic, name, settings);
            });
            session.check(name + ": two members share the partitions", () -> {
                present(settings);
                return share(session, topic, name, settings);
            });
        }
        session.check("describe, offsets, reset and delete a group", () -> administer(session, topic));
    }

    /** The new protocol was a preview before 4.0. */
    private static void present(Map<String, Object> settings) throws Session.Skipped {
        if (settings.containsKey("group.protocol") && AppInfoParser.getVersion().startsWith("3.")) {
            throw new Session.Skipped("a preview in this client");
        }
    }

    /** By name, what a consumer is configured with. */
    private static Map<String, Map<String, Object>> kinds() {
        Map<String, Map<String, Object>> kinds = new LinkedHashMap<>();
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor",
                "CooperativeStickyAssignor")) {
            kinds.put("classic " + assignor, Map.of("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer." + assignor));
        }
        kinds.put("classic, static member", Map.of("group.instance.id", "one"));
        kinds.put("consumer uniform", Map.of("group.protocol", "consumer"));
        kinds.put("consumer range", Map.of("group.protocol", "consumer",
            "group.remote.assignor", "range"));
        return kinds;
    }

    private static KafkaConsumer<byte[], byte[]> member(
            Session session, String group, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("group.id", group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        all.put("max.poll.records", 50);
        return session.consumer(all);
    }

    private static String goOn(
            Session session, String topic, String name, Map<String, Object> settings) {
        String group = topic + "-go-on-" + name.replace(' ', '-').replace(",", "");
        Set<String> seen = new HashSet<>();
        try (KafkaConsumer<byte[], byte[]> consumer = member(session, group, settings)) {
            consumer.subscribe(List.of(topic));
            take(consumer, seen, COUNT / 2);
            consumer.commitSync();
        }
        int first = seen.size();
        try (KafkaConsumer<byte[], byte[]> consumer = member(session, group, settings)) {
            consumer.subscribe(List.of(topic));
            take(consumer, seen, COUNT);
        }
        Session.equal("records, each once", COUNT, seen.size());
        return first + " and " + (COUNT - first) + " records";
    }

    /** Reads until `seen` holds at least `wanted` places; a place that comes twice is an error. */
    private static void take(KafkaConsumer<byte[], byte[]> consumer, Set<String> seen, int wanted) {
        long deadline = System.currentTimeMillis() + Session.PATIENCE_MS;
        while (seen.size() < wanted) {
            Session.that("records in time", System.currentTimeMillis() < deadline);
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                Session.that("once", seen.add(record.partition() + "@" + record.offset()));
            }
        }
    }

    private static String share(
            Session session, String topic, String name, Map<String, Object> settings) {
        String group = topic + "-share-" + name.replace(' ', '-').replace(",", "");
        Map<String, Object> second = new HashMap<>(settings);
        second.computeIfPresent("group.instance.id", (key, value) -> "two");
        try (KafkaConsumer<byte[], byte[]> one = member(session, group, settings);
                KafkaConsumer<byte[], byte[]> two = member(session, group, second)) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + Session.PATIENCE_MS;
            Set<TopicPartition> both = new HashSet<>();
            while (both.size() < PARTITIONS || one.assignment().size() != PARTITIONS / 2) {
                Session.that("shared in time", System.currentTimeMillis() < deadline);
                one.poll(Duration.ofMillis(50));
                two.poll(Duration.ofMillis(50));
                both.clear();
                both.addAll(one.assignment());
                both.addAll(two.assignment());
            }
            Session.equal("the other half", PARTITIONS / 2, two.assignment().size());
        }
        return PARTITIONS / 2 + " partitions each";
    }

    private static String administer(Session session, String topic) throws Exception {
        String group = topic + "-administered";
        TopicPartition place = new TopicPartition(topic, 0);
        Admin admin = session.admin();
        try (KafkaConsumer<byte[], byte[]> consumer = member(session, group, Map.of())) {
            consumer.subscribe(List.of(topic));
            take(consumer, new HashSet<>(), COUNT);
            consumer.commitSync();
            ConsumerGroupDescription shown = Session.get(
                admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
            Session.equal("members", 1, shown.members().size());
            Session.fails(GroupNotEmptyException.class, () ->
                Session.get(admin.deleteConsumerGroups(List.of(group)).deletedGroups().get(group)));
        }
        Map<TopicPartition, OffsetAndMetadata> committed = Session.get(
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        Session.equal("committed", (long) COUNT / PARTITIONS, committed.get(place).offset());
        Session.get(admin.alterConsumerGroupOffsets(
            group, Map.of(place, new OffsetAndMetadata(7, "by hand"))).all());
        OffsetAndMetadata moved = Session.get(admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata()).get(place);
        Session.equal("moved", 7L, moved.offset());
        Session.equal("with a note", "by hand", moved.metadata());
        Session.get(admin.deleteConsumerGroupOffsets(group, Set.of(place)).all());
        Session.that("forgotten", !Session.get(admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata()).containsKey(place));
        Session.get(admin.deleteConsumerGroups(List.of(group)).all());
        Session.fails(GroupIdNotFoundException.class, () ->
            Session.get(admin.deleteConsumerGroups(List.of(group)).all()));
        return "";
    }
}
