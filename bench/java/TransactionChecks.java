import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.stream.Collectors.toList;
import static java.util.stream.Collectors.toSet;

import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.utils.AppInfoParser;

/** Transactions: the producer, the consumer that reads what is committed, and Admin's view of both. */
final class TransactionChecks {
    private static final Map<String, Object> COMMITTED = Map.of("isolation.level", "read_committed");
    private static final int COUNT = 50;

    private TransactionChecks() {
    }

    static void run(Session session) throws Exception {
        session.check("commit", () -> commit(session));
        session.check("abort", () -> abort(session));
        session.check("an open transaction holds back what follows", () -> open(session));
        session.check("the epoch after each end", () -> epochs(session));
        session.check("a transaction without records", () -> empty(session));
        session.check("a record that is too large, then an abort", () -> abortable(session));
        session.check("the next producer of the same id aborts what is open", () -> inherited(session));
        session.check("a fenced producer commits", () -> fenced(session, true));
        session.check("a fenced producer sends", () -> fenced(session, false));
        session.check("open for longer than its time-out", () -> timedOut(session));
        session.check("a time-out above the broker's maximum", () -> tooPatient(session));
        for (String protocol : List.of("classic", "consumer")) {
            session.check("consume, transform, produce, " + protocol, () -> transform(session, protocol));
            session.check("offsets of another generation, " + protocol, () -> zombie(session, protocol));
        }
        session.check("many transactions over 12 partitions", () -> many(session));
        session.check("describeTransactions", () -> describe(session));
        session.check("describeTransactions of an unknown id", () -> describeUnknown(session));
        session.check("listTransactions", () -> list(session));
        session.check("listTransactions by pattern", () -> listByPattern(session));
        session.check("describeProducers", () -> producers(session));
        session.check("fenceProducers", () -> fenceProducers(session));
        session.check("abortTransaction", () -> abortByAdmin(session));
        session.check("forceTerminateTransaction", () -> terminate(session));
    }

    /** The new protocol of groups was a preview before 4.0. */
    private static void present(String protocol) throws Session.Skipped {
        if (protocol.equals("consumer") && AppInfoParser.getVersion().startsWith("3.")) {
            throw new Session.Skipped("a preview in this client");
        }
    }

    // What the checks share.

    private static KafkaProducer<byte[], byte[]> producer(Session session, String id, Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("transactional.id", id));
        for (int index = 0; index < more.length; index += 2) {
            settings.put((String) more[index], more[index + 1]);
        }
        return session.producer(settings);
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int partition, String value) {
        return new ProducerRecord<>(topic, partition, null, value.getBytes(UTF_8));
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, String value) {
        producer.send(record(topic, 0, value));
        producer.flush();
    }

    private static List<String> values(Session session, String topic, int partition, boolean committed) {
        List<ConsumerRecord<byte[], byte[]>> found =
            session.readAll(topic, partition, committed ? COMMITTED : Map.of());
        return found.stream().map(each -> new String(each.value(), UTF_8)).collect(toList());
    }

    /** Where a consumer that reads what is committed comes to its end. */
    private static long lastStable(Session session, String topic) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(COMMITTED)) {
            return consumer.endOffsets(List.of(place)).get(place);
        }
    }

    private static TransactionDescription description(Session session, String id) throws Exception {
        return Session.get(session.admin().describeTransactions(List.of(id)).description(id));
    }

    private static void state(Session session, String id, TransactionState expected) throws Exception {
        Session.eventually("state", expected, () -> description(session, id).state());
    }

    /** Whether this client and this cluster both know transaction version 2. */
    private static boolean raisesEpoch(Session session) throws Exception {
        FinalizedVersionRange level = Session.get(session.admin().describeFeatures().featureMetadata())
            .finalizedFeatures().get("transaction.version");
        return !AppInfoParser.getVersion().startsWith("3.") && level != null && level.maxVersionLevel() >= 2;
    }

    // The producer.

    private static String commit(Session session) throws Exception {
        String topic = session.topic(2, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int number = 0; number < COUNT; number++) {
                producer.send(record(topic, number % 2, "v" + number));
            }
            producer.commitTransaction();
        }
        Session.eventually("last stable offset", COUNT / 2 + 1L, () -> lastStable(session, topic));
        for (int partition = 0; partition < 2; partition++) {
            Session.equal("records", COUNT / 2, values(session, topic, partition, true).size());
        }
        return COUNT + " records in two partitions";
    }

    private static String abort(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "aborted");
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, "committed");
            producer.commitTransaction();
        }
        Session.eventually("last stable offset", 4L, () -> lastStable(session, topic));
        Session.equal("committed", List.of("committed"), values(session, topic, 0, true));
        Session.equal("everything", List.of("aborted", "committed"), values(session, topic, 0, false));
        return "";
    }

    private static String open(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic);
                KafkaProducer<byte[], byte[]> plain = session.producer(Map.of())) {
            producer.initTransactions();
            send(plain, topic, "before");
            producer.beginTransaction();
            send(producer, topic, "within");
            send(plain, topic, "after");
            Session.equal("last stable offset", 1L, lastStable(session, topic));
            Session.equal("end", 3L, session.endOffset(topic, 0));
            Session.equal("committed", List.of("before"), values(session, topic, 0, true));
            producer.commitTransaction();
        }
        Session.eventually("last stable offset", 4L, () -> lastStable(session, topic));
        Session.equal("committed", List.of("before", "within", "after"), values(session, topic, 0, true));
        return "";
    }

    private static String epochs(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        int step = raisesEpoch(session) ? 1 : 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            int first = description(session, topic).producerEpoch();
            for (int turn = 1; turn <= 4; turn++) {
                producer.beginTransaction();
                send(producer, topic, "v" + turn);
                if (turn % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                Session.equal("epoch", first + step * turn, description(session, topic).producerEpoch());
            }
        }
        return step == 1 ? "raised" : "stays";
    }

    private static String empty(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, "one");
            producer.commitTransaction();
        }
        Session.eventually("last stable offset", 2L, () -> lastStable(session, topic));
        return "";
    }

    private static String abortable(Session session) throws Exception {
        String topic = session.topic(1, Map.of("max.message.bytes", "10000"));
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "small");
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[50_000]));
            Session.fails(KafkaException.class, producer::commitTransaction);
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, "again");
            producer.commitTransaction();
        }
        Session.eventually("last stable offset", 4L, () -> lastStable(session, topic));
        Session.equal("committed", List.of("again"), values(session, topic, 0, true));
        return "";
    }

    private static String inherited(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        KafkaProducer<byte[], byte[]> first = producer(session, topic);
        try (KafkaProducer<byte[], byte[]> second = producer(session, topic)) {
            first.initTransactions();
            first.beginTransaction();
            send(first, topic, "lost");
            second.initTransactions();
            Session.equal("last stable offset", 2L, lastStable(session, topic));
            second.beginTransaction();
            send(second, topic, "kept");
            second.commitTransaction();
        } finally {
            first.close(Duration.ZERO);
        }
        Session.eventually("last stable offset", 4L, () -> lastStable(session, topic));
        Session.equal("committed", List.of("kept"), values(session, topic, 0, true));
        return "";
    }

    private static String fenced(Session session, boolean commits) throws Exception {
        String topic = session.topic(1, Map.of());
        KafkaProducer<byte[], byte[]> first = producer(session, topic);
        String told;
        try (KafkaProducer<byte[], byte[]> second = producer(session, topic)) {
            first.initTransactions();
            first.beginTransaction();
            send(first, topic, "lost");
            second.initTransactions();
            if (commits) {
                Session.fails(ProducerFencedException.class, first::commitTransaction);
                told = "ProducerFencedException";
            } else {
                told = refusal(first, topic);
                Session.that("it is told that it is fenced, not " + told,
                    Set.of("ProducerFencedException", "InvalidProducerEpochException").contains(told));
            }
            second.beginTransaction();
            send(second, topic, "kept");
            second.commitTransaction();
        } finally {
            first.close(Duration.ZERO);
        }
        Session.eventually("last stable offset", 4L, () -> lastStable(session, topic));
        Session.equal("everything", List.of("lost", "kept"), values(session, topic, 0, false));
        Session.equal("committed", List.of("kept"), values(session, topic, 0, true));
        return told;
    }

    /** The name of the exception with which a record is refused. */
    private static String refusal(KafkaProducer<byte[], byte[]> producer, String topic) throws Exception {
        try {
            producer.send(record(topic, 0, "refused")).get();
        } catch (ExecutionException refused) {
            return refused.getCause().getClass().getSimpleName();
        }
        return "nothing";
    }

    private static String timedOut(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        KafkaProducer<byte[], byte[]> producer = producer(session, topic, "transaction.timeout.ms", 1_000);
        String told = "nothing";
        try {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "lost");
            Session.eventually("last stable offset", 2L, () -> lastStable(session, topic));
            try {
                producer.commitTransaction();
            } catch (KafkaException refused) {
                told = refused.getClass().getSimpleName();
            }
        } finally {
            producer.close(Duration.ZERO);
        }
        Session.that("the commit is refused, not " + told,
            Set.of(InvalidTxnStateException.class, InvalidProducerEpochException.class, ProducerFencedException.class)
                .stream().map(Class::getSimpleName).anyMatch(told::equals));
        state(session, topic, TransactionState.COMPLETE_ABORT);
        Session.equal("committed", List.of(), values(session, topic, 0, true));
        return told;
    }

    private static String tooPatient(Session session) throws Exception {
        KafkaProducer<byte[], byte[]> producer =
            producer(session, session.freshName(), "transaction.timeout.ms", 900_001);
        try {
            Session.fails(KafkaException.class, producer::initTransactions);
        } finally {
            producer.close(Duration.ZERO);
        }
        return "";
    }

    // Offsets.

    private static String transform(Session session, String protocol) throws Exception {
        present(protocol);
        String in = session.topic(2, Map.of());
        String out = session.topic(2, Map.of());
        try (KafkaProducer<byte[], byte[]> plain = session.producer(Map.of())) {
            for (int number = 0; number < COUNT; number++) {
                plain.send(record(in, number % 2, "v" + number));
            }
        }
        List<String> moved = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(Map.of(
                    "group.id", in, "group.protocol", protocol, "isolation.level", "read_committed",
                    "auto.offset.reset", "earliest", "max.poll.records", 7));
                KafkaProducer<byte[], byte[]> producer = producer(session, in)) {
            producer.initTransactions();
            consumer.subscribe(List.of(in));
            long deadline = System.currentTimeMillis() + 3 * Session.PATIENCE_MS;
            // Transactions are counted, not polls: after a seek the fetch under way ends with its time-out,
            // always after the same number of empty polls, and every transaction could be an aborted one.
            int transaction = 0;
            while (moved.size() < COUNT) {
                Session.that("all come in time", System.currentTimeMillis() < deadline);
                ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(200));
                if (found.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> each : found) {
                    producer.send(new ProducerRecord<>(out, each.partition(), null, each.value()));
                    offsets.put(new TopicPartition(in, each.partition()),
                        new OffsetAndMetadata(each.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (transaction++ % 3 == 1) {
                    producer.abortTransaction();
                    Map<TopicPartition, OffsetAndMetadata> known = consumer.committed(offsets.keySet());
                    for (TopicPartition place : offsets.keySet()) {
                        consumer.seek(place, known.get(place) == null ? 0 : known.get(place).offset());
                    }
                    continue;
                }
                producer.commitTransaction();
                found.forEach(each -> moved.add(new String(each.value(), UTF_8)));
                Map<TopicPartition, OffsetAndMetadata> known = consumer.committed(offsets.keySet());
                offsets.forEach((place, offset) ->
                    Session.equal("committed offset", offset.offset(), known.get(place).offset()));
            }
        }
        List<String> arrived = new ArrayList<>(values(session, out, 0, true));
        arrived.addAll(values(session, out, 1, true));
        Session.equal("arrived", COUNT, arrived.size());
        Session.equal("each of them", COUNT, arrived.stream().collect(toSet()).size());
        return COUNT + " records, each once";
    }

    private static String zombie(Session session, String protocol) throws Exception {
        present(protocol);
        String topic = session.topic(1, Map.of());
        TopicPartition place = new TopicPartition(topic, 0);
        Map<String, Object> settings = Map.of("group.id", topic, "group.protocol", protocol,
            "auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer = session.consumer(settings);
                KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "one");
            producer.commitTransaction();
            consumer.subscribe(List.of(topic));
            Session.eventually("assignment", Set.of(place), () -> {
                consumer.poll(Duration.ofMillis(100));
                return consumer.assignment();
            });
            var stale = consumer.groupMetadata();
            consumer.unsubscribe();
            producer.beginTransaction();
            Session.fails(CommitFailedException.class,
                () -> {
                    producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(1)), stale);
                    producer.commitTransaction();
                });
            producer.abortTransaction();
            Session.equal("committed offset", null,
                Session.get(session.admin().listConsumerGroupOffsets(topic)
                    .partitionsToOffsetAndMetadata()).get(place));
        }
        return "CommitFailedException";
    }

    private static String many(Session session) throws Exception {
        String topic = session.topic(12, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic, "batch.size", 500)) {
            producer.initTransactions();
            for (int turn = 0; turn < 60; turn++) {
                producer.beginTransaction();
                for (int number = 0; number < 100; number++) {
                    producer.send(record(topic, number % 12, turn + " " + number));
                }
                if (turn % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        state(session, topic, TransactionState.COMPLETE_ABORT);
        int found = 0;
        for (int partition = 0; partition < 12; partition++) {
            List<String> values = values(session, topic, partition, true);
            Session.that("no aborted record",
                values.stream().noneMatch(each -> Integer.parseInt(each.split(" ")[0]) % 3 == 2));
            found += values.size();
        }
        Session.equal("committed", 4_000, found);
        return "60 transactions, 4,000 of 6,000 records committed";
    }

    // Admin.

    private static String describe(Session session) throws Exception {
        String topic = session.topic(2, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic, "transaction.timeout.ms", 45_678)) {
            producer.initTransactions();
            TransactionDescription idle = description(session, topic);
            Session.equal("state", TransactionState.EMPTY, idle.state());
            Session.that("no time of a beginning", idle.transactionStartTimeMs().isEmpty());
            long before = System.currentTimeMillis();
            producer.beginTransaction();
            send(producer, topic, "one");
            TransactionDescription found = description(session, topic);
            Session.equal("state", TransactionState.ONGOING, found.state());
            Session.equal("partitions", Set.of(new TopicPartition(topic, 0)), found.topicPartitions());
            Session.equal("time-out", 45_678L, found.transactionTimeoutMs());
            Session.that("it began now",
                Math.abs(found.transactionStartTimeMs().getAsLong() - before) < Session.PATIENCE_MS);
            Session.equal("producer", idle.producerId(), found.producerId());
            producer.commitTransaction();
            state(session, topic, TransactionState.COMPLETE_COMMIT);
            Session.equal("partitions", Set.of(), description(session, topic).topicPartitions());
        }
        return "";
    }

    private static String describeUnknown(Session session) throws Exception {
        Session.fails(TransactionalIdNotFoundException.class,
            () -> description(session, session.freshName()));
        return "TransactionalIdNotFoundException";
    }

    private static String list(Session session) throws Exception {
        Admin admin = session.admin();
        String idle = session.topic(1, Map.of());
        String busy = session.topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> one = producer(session, idle);
                KafkaProducer<byte[], byte[]> two = producer(session, busy)) {
            one.initTransactions();
            two.initTransactions();
            two.beginTransaction();
            send(two, busy, "one");
            Set<String> all = names(admin.listTransactions().all());
            Session.that("both are listed", all.containsAll(List.of(idle, busy)));
            Set<String> ongoing = names(admin.listTransactions(
                new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING))).all());
            Session.that("by state", ongoing.contains(busy) && !ongoing.contains(idle));
            long id = description(session, busy).producerId();
            Session.equal("by producer", Set.of(busy), names(admin.listTransactions(
                new ListTransactionsOptions().filterProducerIds(List.of(id))).all()));
            Session.that("by duration", !names(admin.listTransactions(
                new ListTransactionsOptions().filterOnDuration(3_600_000)).all()).contains(busy));
            Session.eventually("listed once it is old enough", true, () -> names(admin.listTransactions(
                new ListTransactionsOptions().filterOnDuration(1)).all()).contains(busy));
            two.abortTransaction();
        }
        return "";
    }

    private static Set<String> names(KafkaFuture<? extends java.util.Collection<TransactionListing>> found)
            throws Exception {
        return Session.get(found).stream().map(TransactionListing::transactionalId).collect(toSet());
    }

    private static String listByPattern(Session session) throws Exception {
        Method method;
        try {
            method = ListTransactionsOptions.class.getMethod("filterOnTransactionalIdPattern", String.class);
        } catch (NoSuchMethodException absent) {
            throw new Session.Skipped("not in this client");
        }
        String id = session.freshName();
        try (KafkaProducer<byte[], byte[]> producer = producer(session, id)) {
            producer.initTransactions();
        }
        ListTransactionsOptions options = new ListTransactionsOptions();
        method.invoke(options, id.substring(0, id.length() - 1) + ".$");
        Session.that("it is listed", names(session.admin().listTransactions(options).all()).contains(id));
        options = new ListTransactionsOptions();
        method.invoke(options, id.substring(1));
        Session.equal("a pattern is for the whole name", Set.of(),
            names(session.admin().listTransactions(options).all()));
        return "";
    }

    private static String producers(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(session, topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "one");
            send(producer, topic, "two");
            ProducerState found = onlyProducer(session, topic);
            TransactionDescription description = description(session, topic);
            Session.equal("producer", description.producerId(), found.producerId());
            Session.equal("epoch", description.producerEpoch(), found.producerEpoch());
            Session.equal("last sequence", 1, found.lastSequence());
            Session.equal("begin", 0L, found.currentTransactionStartOffset().getAsLong());
            producer.commitTransaction();
            Session.eventually("begin", true,
                () -> onlyProducer(session, topic).currentTransactionStartOffset().isEmpty());
            ProducerState ended = onlyProducer(session, topic);
            Session.that("the coordinator is known", ended.coordinatorEpoch().isPresent());
            Session.equal("last sequence after the end", raisesEpoch(session) ? -1 : 1, ended.lastSequence());
        }
        return "";
    }

    private static ProducerState onlyProducer(Session session, String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        List<ProducerState> found = Session.get(
            session.admin().describeProducers(List.of(place)).partitionResult(place)).activeProducers();
        Session.equal("producers", 1, found.size());
        return found.get(0);
    }

    private static String fenceProducers(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        KafkaProducer<byte[], byte[]> producer = producer(session, topic);
        try {
            producer.initTransactions();
            int epoch = description(session, topic).producerEpoch();
            producer.beginTransaction();
            send(producer, topic, "lost");
            var fencing = session.admin().fenceProducers(List.of(topic));
            Session.get(fencing.all());
            Session.that("a later epoch", Session.get(fencing.epochId(topic)) > epoch);
            Session.fails(ProducerFencedException.class, producer::commitTransaction);
        } finally {
            producer.close(Duration.ZERO);
        }
        Session.eventually("last stable offset", 2L, () -> lastStable(session, topic));
        Session.equal("committed", List.of(), values(session, topic, 0, true));
        return "";
    }

    private static String abortByAdmin(Session session) throws Exception {
        String topic = session.topic(1, Map.of());
        TopicPartition place = new TopicPartition(topic, 0);
        KafkaProducer<byte[], byte[]> producer = producer(session, topic);
        String told;
        try {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "lost");
            ProducerState state = onlyProducer(session, topic);
            Session.get(session.admin().abortTransaction(new AbortTransactionSpec(place,
                state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all());
            Session.equal("last stable offset", 2L, lastStable(session, topic));
            told = outcome(() -> send(producer, topic, "late"));
            told += ", " + outcome(producer::abortTransaction);
        } finally {
            producer.close(Duration.ZERO);
        }
        Session.equal("committed", List.of(), values(session, topic, 0, true));
        try (KafkaProducer<byte[], byte[]> next = producer(session, topic)) {
            next.initTransactions();
            next.beginTransaction();
            send(next, topic, "kept");
            next.commitTransaction();
        }
        Session.equal("committed", List.of("kept"), values(session, topic, 0, true));
        return "then a send and an abort: " + told;
    }

    private static String outcome(Session.Action action) throws Exception {
        try {
            action.run();
        } catch (KafkaException problem) {
            return problem.getClass().getSimpleName();
        }
        return "done";
    }

    private static String terminate(Session session) throws Exception {
        Method method;
        try {
            method = Admin.class.getMethod("forceTerminateTransaction", String.class);
        } catch (NoSuchMethodException absent) {
            throw new Session.Skipped("not in this client");
        }
        String topic = session.topic(1, Map.of());
        KafkaProducer<byte[], byte[]> producer = producer(session, topic);
        try {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, "lost");
            Object result = method.invoke(session.admin(), topic);
            Session.get((KafkaFuture<?>) result.getClass().getMethod("result").invoke(result));
            Session.equal("last stable offset", 2L, lastStable(session, topic));
            Session.fails(ProducerFencedException.class, producer::commitTransaction);
        } finally {
            producer.close(Duration.ZERO);
        }
        Session.equal("committed", List.of(), values(session, topic, 0, true));
        return "";
    }
}
