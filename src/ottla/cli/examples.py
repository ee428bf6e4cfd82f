"""What to type: a few lines for every command, shown at the end of its help.

Each is a whole line for a shell. Tests hold that every command has some, that each is understood
by the command, and that those that come to an end do so without an error on a broker.
"""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        "ottla server start",
        "ottla topic create orders -p 3",
        "echo hello | ottla produce orders",
        "ottla consume orders --from-beginning -e",
    ),
    "server": (
        "ottla server start",
        "ottla server start --config server.properties",
    ),
    "server start": (
        "ottla server start",
        "ottla server start --config server.properties",
        "ottla server start --listen 127.0.0.1:9093 -d data -s num.partitions=3",
        "ottla server start --processes auto -d many",
    ),
    "cluster": (
        "ottla cluster up",
        "ottla cluster status",
        "ottla cluster restart --rolling",
    ),
    "cluster up": (
        "ottla cluster up",
        "ottla cluster up --brokers 5 --base-port 19092 -d five",
        "ottla cluster up -s num.partitions=3",
        "ottla cluster up --zookeeper -d on-zookeeper",
    ),
    "cluster restart": (
        "ottla cluster restart --rolling",
        "ottla cluster restart --rolling --broker 2 -d five",
        "ottla cluster restart --rolling --with 'ssh {host} systemctl restart ottla'",
    ),
    "cluster upgrade": (
        "ottla cluster upgrade",
        "ottla cluster upgrade --with 'ssh {host} systemctl restart ottla' --yes",
        "ottla cluster upgrade --finalize --yes",
    ),
    "cluster add": (
        "ottla cluster add",
        "ottla cluster add --rebalance --throttle 50000000 -d five",
        "ottla cluster add --like server.properties --listen 10.0.0.4:9092 -d /var/lib/ottla",
    ),
    "cluster rebalance": (
        "ottla cluster rebalance",
        "ottla cluster rebalance --throttle 50000000 --yes",
    ),
    "cluster drain": (
        "ottla cluster drain 3",
        "ottla cluster drain 3 --yes",
    ),
    "cluster move-logs": (
        "ottla cluster move-logs 1 /data/new-disk",
        "ottla cluster move-logs 1 /data/new-disk orders --yes",
        "ottla cluster move-logs 1 /data/b --from /data/a --throttle 50000000 --yes",
    ),
    "cluster status": (
        "ottla cluster status",
        "ottla cluster status --watch -i 1",
        "ottla cluster status -J -b 127.0.0.1:9092",
    ),
    "zookeeper": (
        "ottla zookeeper start",
        "ottla zookeeper start --config config/zookeeper.properties",
    ),
    "zookeeper start": (
        "ottla zookeeper start",
        "ottla zookeeper start --config config/zookeeper.properties",
        "ottla zookeeper start --listen 127.0.0.1:2182 -d zookeeper-2",
        "ottla zookeeper start --config ensemble.properties --id 1",
    ),
    "topic": (
        "ottla topic create orders -p 3",
        "ottla topic ls",
        "ottla topic desc orders",
        "ottla topic rm orders",
    ),
    "topic create": (
        "ottla topic create orders",
        "ottla topic create orders returns -p 6 --if-not-exists",
        "ottla topic create profiles -c cleanup.policy=compact -c segment.ms=3600000",
    ),
    "topic list": (
        "ottla topic list",
        "ottla topic ls --internal",
        "ottla topic ls -J -b 127.0.0.1:9092",
    ),
    "topic describe": (
        "ottla topic describe",
        "ottla topic desc orders returns",
        "ottla topic desc orders -J",
    ),
    "topic alter": (
        "ottla topic alter orders -p 12",
        "ottla topic alter orders -c retention.ms=86400000",
        "ottla topic alter orders --delete-config retention.ms",
    ),
    "topic delete": (
        "ottla topic delete orders",
        "ottla topic rm orders returns --if-exists",
    ),
    "topic replicate": (
        "ottla topic replicate orders --replication 3",
        "ottla topic replicate orders __consumer_offsets --replication 3 --yes",
    ),
    "topic elect": (
        "ottla topic elect",
        "ottla topic elect orders",
        "ottla topic elect orders --accept-loss",
        "ottla topic elect orders --accept-loss --yes",
    ),
    "topic explain-retention": (
        "ottla topic explain-retention orders",
        "ottla topic explain-retention orders -J",
    ),
    "produce": (
        "echo 42:paid | ottla produce orders -K :",
        "ottla produce orders -H source=shop -z zstd < orders.txt",
        "ottla produce orders --whole-file orders.txt --key 2026-05-01",
        """echo '{"key": "42", "value": "paid"}' | ottla produce orders --format json""",
    ),
    "consume": (
        "ottla consume orders returns",
        "ottla consume orders -o -10 -n 10 -k",
        "ottla consume orders --from-beginning -e -f '{partition}:{offset} {key} {value}'",
        "ottla consume orders -g billing --timeout 5 -J",
    ),
    "group": (
        "ottla group ls",
        "ottla group desc billing",
        "ottla group reset billing -t orders --to earliest --execute",
        "ottla group watch",
    ),
    "group list": (
        "ottla group list",
        "ottla group ls --state empty",
        "ottla group ls --type consumer -J",
    ),
    "group describe": (
        "ottla group describe billing",
        "ottla group desc -m billing",
        "ottla group desc -J",
    ),
    "group reset": (
        "ottla group reset billing -t orders --to earliest",
        "ottla group reset billing -t orders:0,1 --back 15m --execute",
        "ottla group reset billing --all-topics --shift -10",
        "ottla group reset billing -t orders --to 2026-05-01T12:00:00Z",
    ),
    "group delete": (
        "ottla group delete billing",
        "ottla group rm billing -t orders:0",
        "ottla group rm billing --if-exists",
    ),
    "group watch": (
        "ottla group watch",
        "ottla group watch billing -i 5",
        "ottla group watch --once -J",
    ),
    "txn": (
        "ottla txn list",
        "ottla txn desc payments",
        "ottla txn find-hanging",
    ),
    "txn list": (
        "ottla txn list",
        "ottla txn ls --state ongoing --longer-than 60",
        "ottla txn ls -J",
    ),
    "txn describe": (
        "ottla txn describe payments",
        "ottla txn desc payments -J",
    ),
    "txn abort": (
        "ottla txn abort payments",
        "ottla txn abort -t orders -p 0 -o 42",
    ),
    "txn find-hanging": (
        "ottla txn find-hanging",
        "ottla txn find-hanging orders --longer-than 900",
    ),
    "offsets": (
        "ottla offsets orders",
        "ottla offsets orders:0,1 returns",
        "ottla offsets orders --at 2026-05-01T12:00:00Z",
    ),
    "config": (
        "ottla config desc topic orders",
        "ottla config alter topic orders -s retention.ms=86400000",
    ),
    "config describe": (
        "ottla config describe topic orders",
        "ottla config desc topic orders --key retention.ms",
        "ottla config desc broker 1 --all",
    ),
    "config alter": (
        "ottla config alter topic orders -s retention.ms=86400000",
        "ottla config alter topic orders --delete retention.ms",
        "ottla config alter group billing -s consumer.session.timeout.ms=50000",
    ),
    "perf": (
        "ottla perf produce orders -n 10000",
        "ottla perf consume orders -n 10000",
        "ottla perf latency pings -n 1000",
    ),
    "perf produce": (
        "ottla perf produce orders -n 10000 --size 1000",
        "ottla perf produce orders -n 1000 --rate 500",
        "ottla perf produce orders -n 10000 -X linger.ms=20 -X compression.type=lz4",
    ),
    "perf consume": (
        "ottla perf consume orders -n 10000",
        "ottla perf consume orders -n 1000 -g perf",
    ),
    "perf latency": (
        "ottla perf latency pings",
        "ottla perf latency pings -n 100 --size 1000 --acks 1",
    ),
    "top": (
        "ottla top",
        "ottla top --sort lag -i 1",
        "ottla top --warn 30 --alarm 300",
        "ottla top --once -J",
    ),
    "verify": (
        "ottla verify run --duration 10s",
        "ottla verify check run.history.gz",
    ),
    "verify run": (
        "ottla verify run --duration 10s",
        "ottla verify run -b 127.0.0.1:9092 --duration 5s --writers 50 --seed 7",
    ),
    "verify cluster": (
        "ottla verify cluster --duration 10m",
        "ottla verify cluster --faults kill,pause --count 20 --store lent",
        "ottla verify cluster --seed 7 --count 100 --history run.history.gz -d broken",
    ),
    "verify check": (
        "ottla verify check run.history.gz",
        "ottla verify check run.history.gz -J",
    ),
    "log": (
        "ottla log dump data/orders-0 --records",
        "ottla log dump data --verify",
        "ottla log repair data/orders-0",
    ),
    "log dump": (
        "ottla log dump data/orders-0",
        "ottla log dump data/orders-0/00000000000000000000.log --records",
        "ottla log dump data --verify",
        "ottla log dump data/orders-0 --records -J",
    ),
    "log repair": (
        "ottla log repair data/orders-0",
        "ottla log repair data/orders-0 -y",
    ),
    "metadata": (
        "ottla metadata export backup.json -d data",
        "ottla metadata import backup.json -d data",
        "ottla metadata rescue -d data",
    ),
    "metadata export": (
        "ottla metadata export backup.json -d data",
        "ottla metadata export - --config server.properties > backup.json",
    ),
    "metadata import": (
        "ottla metadata import backup.json -d data",
        "ottla metadata import backup.json -d data --replace -y",
    ),
    "metadata rescue": (
        "ottla metadata rescue -d data",
        "ottla metadata rescue -d data --partitions orders=3 --replace -y",
    ),
    "pipeline": (
        "ottla pipeline validate orders.yaml",
        "ottla pipeline run orders.yaml",
        "ottla pipeline status",
        "ottla pipeline stop orders",
    ),
    "pipeline validate": (
        "ottla pipeline validate orders.yaml",
        "ottla pipeline validate orders.yaml --offline -J",
    ),
    "pipeline schema": (
        "ottla pipeline schema",
        "ottla pipeline schema > pipeline.schema.json",
    ),
    "pipeline preview": (
        "ottla pipeline preview orders.yaml",
        "ottla pipeline preview orders.yaml --rows 3 -J",
    ),
    "pipeline test": (
        "ottla pipeline test orders.yaml",
        "ottla pipeline test orders.yaml refunds",
    ),
    "pipeline redrive": (
        "ottla pipeline redrive orders --dry-run",
        "ottla pipeline redrive orders --where \"kind = 'DataError'\"",
    ),
    "pipeline run": (
        "ottla pipeline run orders.yaml",
        "ottla pipeline run orders.yaml --once",
        "ottla pipeline run orders.yaml --from-group",
        "ottla pipeline run orders.yaml --master spark://127.0.0.1:7077 --shared-path",
    ),
    "pipeline list": (
        "ottla pipeline list",
        "ottla pipeline ls -J",
    ),
    "pipeline status": (
        "ottla pipeline status",
        "ottla pipeline status orders -J",
    ),
    "pipeline stop": (
        "ottla pipeline stop orders",
        "ottla pipeline stop orders --now",
    ),
    "pipeline reset": (
        "ottla pipeline reset orders",
        "ottla pipeline reset orders -y",
    ),
    "pipeline offsets": (
        "ottla pipeline offsets show orders",
        "ottla pipeline offsets reset orders --to earliest --dry-run",
    ),
    "pipeline offsets show": (
        "ottla pipeline offsets show orders",
        "ottla pipeline offsets show orders -J",
    ),
    "pipeline offsets set": (
        "ottla pipeline offsets set orders orders:0=1200 orders:1=800",
        "ottla pipeline offsets set orders orders:0=0 --dry-run",
    ),
    "pipeline offsets reset": (
        "ottla pipeline offsets reset orders --to earliest --dry-run",
        "ottla pipeline offsets reset orders --back 2h",
        "ottla pipeline offsets reset orders --shift -100 -t orders:0",
        "ottla pipeline offsets reset orders --to 2026-05-01T12:00:00Z",
    ),
    "tools": (
        "ottla tools list",
        "ottla tools link ~/.local/bin",
    ),
    "tools list": (
        "ottla tools list",
        "ottla tools ls -J",
    ),
    "tools link": (
        "ottla tools link ~/.local/bin",
        "ottla tools link .venv/bin --force",
    ),
    "tools unlink": (
        "ottla tools unlink ~/.local/bin",
        "ottla tools unlink .venv/bin",
    ),
    "completion": (
        "ottla completion bash >> ~/.bashrc",
        "ottla completion fish > ~/.config/fish/completions/ottla.fish",
    ),
}
"""By the words after `ottla`."""
