"""What a session of its own opens to others."""

from __future__ import annotations

import os
import subprocess
import sys

# Whatever listens on every address answers at any of loopback's, and what listens on 127.0.0.1
# does not answer at 127.0.0.2.
PROGRAM = """
import socket
from urllib.parse import urlsplit

from ottla.pipelines import spark_session

spark = spark_session("ports", master="local[1]", config={"spark.ui.port": "0"})
context = spark.sparkContext
pages = urlsplit(context.uiWebUrl).port
for port in (pages, int(context.getConf().get("spark.driver.port"))):
    for host in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as client:
            print(client.connect_ex((host, port)) == 0)
spark.stop()
"""


def test_a_local_session_listens_on_loopback_only_its_pages_too() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["True", "False"] * 2, done.stderr
