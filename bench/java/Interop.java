import java.util.List;
import java.util.Map;

/**
 * Apache Kafka's own Java clients against a broker: {@code java Interop HOST:PORT [SUITE ...]}.
 *
 * <p>Prints one line per check, fields separated by tabs: suite, check, passed, failed or skipped, and a
 * detail. A new area (groups, transactions) is a new class with a {@code run(Session)} method and one
 * line in {@link #SUITES}.
 */
public final class Interop {
    interface Suite {
        void run(Session session) throws Exception;
    }

    private static final List<Map.Entry<String, Suite>> SUITES = List.of(
        Map.entry("producer", ProducerChecks::run),
        Map.entry("consumer", ConsumerChecks::run),
        Map.entry("admin", AdminChecks::run),
        Map.entry("groups", GroupChecks::run),
        Map.entry("transactions", TransactionChecks::run));

    private Interop() {
    }

    public static void main(String[] arguments) throws Exception {
        List<String> wanted = List.of(arguments).subList(1, arguments.length);
        boolean passed = true;
        for (Map.Entry<String, Suite> suite : SUITES) {
            if (wanted.isEmpty() || wanted.contains(suite.getKey())) {
                try (Session session = new Session(arguments[0], suite.getKey())) {
                    suite.getValue().run(session);
                    passed &= session.passed();
                }
            }
        }
        System.out.flush();
        // Client threads of a failed check may still be waiting for something.
        Runtime.getRuntime().halt(passed ? 0 : 1);
    }
}
