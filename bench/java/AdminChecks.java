import static java.util.stream.Collectors.toSet;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Admin: topics, partitions, configs, offsets, log folders, producers, the cluster. */
final class AdminChecks {
    private AdminChecks() {
    }

    static void run(Session session) throws Exception {
        session.check("createTopics", () -> createTopics(session));
        session.check("createTopics, validateOnly", () -> validateOnly(session));
        session.check("createTopics, what is refused", () -> refusedTopics(session));
        session.check("listTopics, describeTopics by name and id", () -> describeTopics(session));
        session.check("createPartitions", () -> createPartitions(session));
        session.check("deleteTopics by name and id", () -> deleteTopics(session));
        session.check("describeConfigs, topic", () -> describeTopicConfigs(session));
        session.check("describeConfigs, broker", () -> describeBrokerConfigs(session));
        session.check("incrementalAlterConfigs", () -> incrementalAlterConfigs(session));
        session.check("incrementalAlterConfigs, broker", () -> alterBrokerConfigs(session));
        session.check("alterConfigs", () -> alterConfigs(session));
        session.check("listConfigResources", () -> listConfigResources(session));
        session.check("deleteRecords", () -> deleteRecords(session));
        session.check("listOffsets", () -> listOffsets(session));
        session.check("describeProducers", () -> describeProducers(session));
        session.check("describeLogDirs", () -> describeLogDirs(session));
        session.check("describeCluster", () -> describeCluster(session));
    }

    private static String createTopics(Session session) throws Exception {
        String name = session.freshName();
        NewTopic wanted = new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "1234567"));
        CreateTopicsResult result = session.admin().createTopics(List.of(wanted));
        Session.get(result.all());
        Session.equal("partitions", 3, Session.get(result.numPartitions(name)));
        Session.equal("replication factor", 1, Session.get(result.replicationFactor(name)));
        Session.that("the id is set", !Session.get(result.topicId(name)).equals(Uuid.ZERO_UUID));
        Session.equal("config", "1234567", Session.get(result.config(name)).get("retention.ms").value());
        return "";
    }

    private static String validateOnly(Session session) throws Exception {
        String name = session.freshName();
        Session.get(session.admin().createTopics(
            List.of(new NewTopic(name, 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all());
        Session.that("nothing was made", !Session.get(session.admin().listTopics().names()).contains(name));
        return "";
    }

    private static String refusedTopics(Session session) throws Exception {
        Admin admin = session.admin();
        String name = session.topic(1, Map.of());
        Session.fails(TopicExistsException.class, () ->
            Session.get(admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all()));
        Session.fails(InvalidTopicException.class, () ->
            Session.get(admin.createTopics(List.of(new NewTopic("no spaces", 1, (short) 1))).all()));
        Session.fails(InvalidPartitionsException.class, () ->
            Session.get(admin.createTopics(List.of(new NewTopic(session.freshName(), 0, (short) 1))).all()));
        Session.fails(InvalidReplicationFactorException.class, () ->
            Session.get(admin.createTopics(List.of(new NewTopic(session.freshName(), 1, (short) 9))).all()));
        Session.fails(InvalidConfigurationException.class, () ->
            Session.get(admin.createTopics(List.of(new NewTopic(session.freshName(), 1, (short) 1)
                .configs(Map.of("retention.ms", "soon")))).all()));
        return "five ways";
    }

    private static String describeTopics(Session session) throws Exception {
        String name = session.topic(2, Map.of());
        Admin admin = session.admin();
        Session.that("listed", Session.get(admin.listTopics().names()).contains(name));
        TopicDescription byName = Session.get(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
        Session.equal("partitions", 2, byName.partitions().size());
        Session.that("a leader in the ISR", byName.partitions().stream()
            .allMatch(partition -> partition.isr().contains(partition.leader())));
        Uuid id = byName.topicId();
        TopicDescription byId =
            Session.get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id);
        Session.equal("name by id", name, byId.name());
        Session.fails(UnknownTopicOrPartitionException.class, () ->
            Session.get(admin.describeTopics(List.of("no-such-topic")).allTopicNames()));
        return "";
    }

    private static String createPartitions(Session session) throws Exception {
        String name = session.topic(2, Map.of());
        Admin admin = session.admin();
        CreatePartitionsOptions dryRun = new CreatePartitionsOptions().validateOnly(true);
        Session.get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(7)), dryRun).all());
        Session.equal("partitions after a dry run", 2, partitions(admin, name));
        Session.get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(5))).all());
        Session.eventually("partitions", 5, () -> partitions(admin, name));
        Session.fails(InvalidPartitionsException.class, () ->
            Session.get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all()));
        return "";
    }

    private static int partitions(Admin admin, String name) throws Exception {
        return Session.get(admin.describeTopics(List.of(name)).allTopicNames()).get(name).partitions().size();
    }

    private static String deleteTopics(Session session) throws Exception {
        Admin admin = session.admin();
        String first = session.topic(1, Map.of());
        String second = session.topic(1, Map.of());
        Uuid id = Session.get(admin.describeTopics(List.of(second)).allTopicNames()).get(second).topicId();
        Session.get(admin.deleteTopics(List.of(first)).all());
        Session.get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        for (String name : List.of(first, second)) {
            Session.eventually(name + " listed", false, () ->
                Session.get(admin.listTopics().names()).contains(name));
        }
        Session.fails(UnknownTopicOrPartitionException.class, () ->
            Session.get(admin.deleteTopics(List.of(first)).all()));
        return "";
    }

    private static String describeTopicConfigs(Session session) throws Exception {
        String name = session.topic(1, Map.of("cleanup.policy", "compact", "segment.bytes", "2097152"));
        DescribeConfigsOptions options =
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        Config config = Session.get(session.admin().describeConfigs(List.of(resource), options).all()).get(resource);
        ConfigEntry set = config.get("cleanup.policy");
        Session.equal("value", "compact", set.value());
        Session.equal("source", ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, set.source());
        ConfigEntry untouched = config.get("retention.ms");
        Session.equal("default", "604800000", untouched.value());
        Session.that("is a default", untouched.isDefault());
        Session.equal("type", ConfigEntry.ConfigType.LONG, untouched.type());
        Session.that("is documented", untouched.documentation() != null && !untouched.documentation().isEmpty());
        Session.that("has synonyms", !config.get("segment.bytes").synonyms().isEmpty());
        return config.entries().size() + " settings";
    }

    private static String describeBrokerConfigs(Session session) throws Exception {
        ConfigResource resource = broker(session);
        Config config = Session.get(session.admin().describeConfigs(List.of(resource)).all()).get(resource);
        Session.that("log.segment.bytes is there", config.get("log.segment.bytes") != null);
        Session.that("a read-only one is marked", config.get("log.dirs").isReadOnly());
        return config.entries().size() + " settings";
    }

    private static ConfigResource broker(Session session) throws Exception {
        int id = Session.get(session.admin().describeCluster().nodes()).iterator().next().id();
        return new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(id));
    }

    private static String value(Admin admin, ConfigResource resource, String key) throws Exception {
        return Session.get(admin.describeConfigs(List.of(resource)).all()).get(resource).get(key).value();
    }

    private static void alter(Admin admin, ConfigResource resource, String key, String value, OpType type)
            throws Exception {
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(key, value), type);
        Session.get(admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    private static void eventually(Admin admin, ConfigResource resource, String key, String expected)
            throws Exception {
        Session.eventually(key, expected, () -> value(admin, resource, key));
    }

    private static String incrementalAlterConfigs(Session session) throws Exception {
        Admin admin = session.admin();
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, session.topic(1, Map.of()));
        alter(admin, topic, "retention.ms", "777", OpType.SET);
        eventually(admin, topic, "retention.ms", "777");
        alter(admin, topic, "cleanup.policy", "compact", OpType.APPEND);
        eventually(admin, topic, "cleanup.policy", "delete,compact");
        alter(admin, topic, "cleanup.policy", "delete", OpType.SUBTRACT);
        eventually(admin, topic, "cleanup.policy", "compact");
        alter(admin, topic, "retention.ms", null, OpType.DELETE);
        eventually(admin, topic, "retention.ms", "604800000");
        Session.fails(InvalidConfigurationException.class, () ->
            alter(admin, topic, "no.such.setting", "1", OpType.SET));
        Session.fails(InvalidConfigurationException.class, () ->
            alter(admin, topic, "retention.ms", "soon", OpType.SET));
        return "set, append, subtract, delete";
    }

    private static String alterBrokerConfigs(Session session) throws Exception {
        Admin admin = session.admin();
        ConfigResource all = new ConfigResource(ConfigResource.Type.BROKER, "");
        ConfigResource one = broker(session);
        String before = value(admin, one, "message.max.bytes");
        alter(admin, all, "message.max.bytes", "1500000", OpType.SET);
        eventually(admin, one, "message.max.bytes", "1500000");
        alter(admin, all, "message.max.bytes", null, OpType.DELETE);
        eventually(admin, one, "message.max.bytes", before);
        return "for all brokers";
    }

    /** Gone from the 4.x clients; older ones still send it. */
    private static String alterConfigs(Session session) throws Exception {
        Method method;
        try {
            method = Admin.class.getMethod("alterConfigs", Map.class);
        } catch (NoSuchMethodException absent) {
            throw new Session.Skipped("not in this client");
        }
        Admin admin = session.admin();
        ConfigResource topic = new ConfigResource(
            ConfigResource.Type.TOPIC, session.topic(1, Map.of("segment.bytes", "2097152")));
        Config config = new Config(List.of(new ConfigEntry("retention.ms", "888")));
        Object result = invoke(method, admin, Map.of(topic, config));
        Session.get((KafkaFuture<?>) invoke(result.getClass().getMethod("all"), result));
        eventually(admin, topic, "retention.ms", "888");
        eventually(admin, topic, "segment.bytes", "1073741824");
        return "";
    }

    private static String listConfigResources(Session session) throws Exception {
        Method method;
        try {
            method = Admin.class.getMethod("listConfigResources");
        } catch (NoSuchMethodException absent) {
            throw new Session.Skipped("not in this client");
        }
        String name = session.topic(1, Map.of("retention.ms", "999"));
        Object result = invoke(method, session.admin());
        KafkaFuture<?> future = (KafkaFuture<?>) invoke(result.getClass().getMethod("all"), result);
        Collection<?> found = (Collection<?>) Session.get(future);
        Session.that("the topic is there", found.contains(new ConfigResource(ConfigResource.Type.TOPIC, name)));
        return found.size() + " resources";
    }

    private static Object invoke(Method method, Object target, Object... arguments) throws Exception {
        try {
            method.setAccessible(true);
            return method.invoke(target, arguments);
        } catch (InvocationTargetException wrapped) {
            throw (Exception) wrapped.getCause();
        }
    }

    private static String filled(Session session, int count) throws Exception {
        String name = session.topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer =
                session.producer(Map.of("batch.size", 1_000, "enable.idempotence", true))) {
            for (int number = 0; number < count; number++) {
                producer.send(ProducerChecks.sample(name, 0, number));
            }
        }
        return name;
    }

    private static String deleteRecords(Session session) throws Exception {
        String name = filled(session, 100);
        TopicPartition place = new TopicPartition(name, 0);
        Admin admin = session.admin();
        long mark = Session.get(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(40)))
            .lowWatermarks().get(place)).lowWatermark();
        Session.equal("low watermark", 40L, mark);
        List<ConsumerRecord<byte[], byte[]>> left = session.readAll(name, 0, Map.of());
        Session.equal("first offset", 40L, left.get(0).offset());
        Session.equal("records left", 60, left.size());
        Session.fails(OffsetOutOfRangeException.class, () ->
            Session.get(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(1_000))).all()));
        Session.get(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(-1))).all());
        Session.equal("all of them", 0, session.readAll(name, 0, Map.of()).size());
        return "";
    }

    private static String listOffsets(Session session) throws Exception {
        String name = filled(session, 100);
        long start = ProducerChecks.HOUR_AGO;
        Session.equal("earliest", 0L, offset(session, name, OffsetSpec.earliest()).offset());
        Session.equal("latest", 100L, offset(session, name, OffsetSpec.latest()).offset());
        ListOffsetsResultInfo newest = offset(session, name, OffsetSpec.maxTimestamp());
        Session.equal("offset of the newest", 99L, newest.offset());
        Session.equal("time of the newest", start + 99_000, newest.timestamp());
        Session.equal("by time", 51L, offset(session, name, OffsetSpec.forTimestamp(start + 50_001)).offset());
        Session.equal("too late", -1L, offset(session, name, OffsetSpec.forTimestamp(start + 100_000)).offset());
        return "earliest, latest, maxTimestamp, timestamp";
    }

    private static ListOffsetsResultInfo offset(Session session, String topic, OffsetSpec spec) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        return Session.get(session.admin().listOffsets(Map.of(place, spec)).partitionResult(place));
    }

    private static String describeProducers(Session session) throws Exception {
        String name = filled(session, 100);
        TopicPartition place = new TopicPartition(name, 0);
        List<ProducerState> active = Session.get(
            session.admin().describeProducers(List.of(place)).partitionResult(place)).activeProducers();
        Session.equal("producers", 1, active.size());
        Session.equal("last sequence", 99, active.get(0).lastSequence());
        Session.that("an id", active.get(0).producerId() >= 0);
        return "";
    }

    private static String describeLogDirs(Session session) throws Exception {
        String name = filled(session, 100);
        int broker = Session.get(session.admin().describeCluster().nodes()).iterator().next().id();
        Map<String, LogDirDescription> folders =
            Session.get(session.admin().describeLogDirs(List.of(broker)).allDescriptions()).get(broker);
        LogDirDescription folder = folders.values().iterator().next();
        Session.that("no error", folder.error() == null);
        Session.that("a size", folder.replicaInfos().get(new TopicPartition(name, 0)).size() > 0);
        Session.that("the disk's size", folder.totalBytes().orElse(0) > 0);
        return folders.size() + " folder";
    }

    private static String describeCluster(Session session) throws Exception {
        DescribeClusterResult cluster = session.admin().describeCluster();
        Session.that("a cluster id", Session.get(cluster.clusterId()).length() > 10);
        Session.equal("nodes", 1, Session.get(cluster.nodes()).size());
        Session.that("the controller is a node", Session.get(cluster.nodes()).stream()
            .map(node -> node.id()).collect(toSet()).contains(Session.get(cluster.controller()).id()));
        return "";
    }
}
