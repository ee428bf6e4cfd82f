"""One run of a pipeline: this process, one Spark session, one query.

    driver = Driver(spec, way, Home(folder, spec.name), choices)
    outcome = driver.run()          # `Refused`, `Failed`; until `stop` from anywhere else

The order of a start: the lock, the topics, the group's member, whatever else can be refused
(`start.py`), Spark, the query. Nobody but the member looks at the checkpoint, or moves it: another
driver may be at work on it. The order of an end: the batch, the commit log, the query, the group's
offsets, Spark, the member, the lock. Whoever is killed in between loses nothing: the next run
begins with the batch that is not in the commit log, under the same number.

A stop waits for the batch, and for nothing that is away: a batch that waits by itself gives up, and
one whose tasks wait for brokers that do not answer is given up. No wait is without an end then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ottla.client.groups import Groups
from ottla.pipelines import masters
from ottla.pipelines.cluster import Cluster, groups_of
from ottla.pipelines.connectors.contract import Batch, Place
from ottla.pipelines.connectors.errors.outages import Verdict, judge
from ottla.pipelines.connectors.errors.policy import wait_before
from ottla.pipelines.connectors.process import Event, Note, Outcome, Stopped, Way, process
from ottla.pipelines.connectors.sources.staging import Folder
from ottla.pipelines.connectors.spec.values import PipelineSpec
from ottla.pipelines.connectors.spec.variables import scrubbed
from ottla.pipelines.driver import failures, offsets, start
from ottla.pipelines.driver.batch_files import check_files
from ottla.pipelines.driver.checkpoint import Checkpoint, open_checkpoint
from ottla.pipelines.driver.executors import ExecutorWatch
from ottla.pipelines.driver.gate import Closed, Gate
from ottla.pipelines.driver.home import Home, local_path
from ottla.pipelines.driver.lag import LagWatch
from ottla.pipelines.driver.lock import Lock
from ottla.pipelines.driver.log_files import is_open
from ottla.pipelines.driver.member import Member, client_id
from ottla.pipelines.driver.membership import Membership
from ottla.pipelines.driver.metrics import MetricsServer
from ottla.pipelines.driver.progress import Board, Figures, State
from ottla.pipelines.driver.spark import MASTER, NotStarted, lend, start_session
from ottla.pipelines.interpreters import TASKS, same_minor
from ottla.pipelines.points import Point, reach
from ottla.pipelines.session import failures_untold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOGGER = logging.getLogger("ottla.pipelines.driver")

_LOOK: Final = 0.2
_TELL: Final = 1.0
_LAST_COMMIT: Final = 5.0
_SPACE_PAUSE: Final = 10.0
_QUESTION: Final = 10.0
_SILENCE: Final = 10.0
"""Seconds that a batch still has after a stop while no broker answers: its tasks would wait for one
without an end."""


class Failed(Exception):
    """The query has ended by itself; the text names the pipeline, the cause and what to do."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Who hears what of a run.

    show             the figures, about once a second and whenever the state changes
    tell             what a batch has to say
    locked           once, when no other driver can be in the pipeline's folder
    session_started  once, when Spark is there
    """

    show: Callable[[Figures], None] = lambda figures: None
    tell: Callable[[Note], None] = lambda note: None
    locked: Callable[[], None] = lambda: None
    session_started: Callable[[], None] = lambda: None


class Driver:
    """Runs one pipeline, once.

    way      what a batch goes through; the driver adds how to wait and whom to tell
    session  a session to run in, on its own master, which is left running; None: one of its own
    """

    def __init__(
        self,
        spec: PipelineSpec,
        way: Way,
        home: Home,
        choices: start.Choices = start.Choices(),  # noqa: B008 - frozen
        audience: Audience = Audience(),  # noqa: B008 - frozen
        *,
        session: SparkSession | None = None,
    ) -> None:
        self._spec = spec
        self._home = home
        self._choices = choices
        self._audience = audience
        self._given = session
        if session is None:
            self._master = choices.master or spec.spark.get("spark.master") or MASTER
        else:
            self._master = str(session.conf.get("spark.master"))
        self._gate = Gate()
        self._way = replace(way, pause=self._gate.pause, tell=self._note)
        self._board = Board(
            Figures(
                spec.name,
                process=os.getpid(),
                host=socket.gethostname(),
                master=self._master,
                bootstrap=spec.bootstrap,
            )
        )
        self._place = home.checkpoint(spec.checkpoint)
        # while it runs
        self._run_id = ""
        self._checkpoint: Checkpoint | None = None
        self._known = threading.Event()
        """The id of the run is known: Spark may begin with a batch before it says which."""
        self._replayed: int | None = None
        self._raised: BaseException | None = None
        self._lost: str | None = None
        self._preparing = False
        self._staging = Folder(home.staging)
        self._source_waits: str | None = None
        self._at_once = False
        self._silent_since: float | None = None
        self._given_up = False
        self._committed: int | None = None
        self._told = 0.0
        self._told_state: State | None = None

    # -- from other threads, and from signals

    def stop(self) -> None:
        """Finish the batch, and end. Returns at once; a second call does not wait for the batch."""
        if self._gate.closed:
            self._at_once = True
        self._gate.close()
        self._board.state(State.STOPPING)

    def figures(self) -> Figures:
        """How it is doing."""
        return self._board.figures()

    # -- a run

    def run(self) -> Outcome:
        """Until it is told to stop, or everything was read; returns what it has done."""
        self._home.make()
        lock = Lock(self._home)
        lock.take()
        try:
            self._audience.locked()
            with contextlib.ExitStack() as stack:
                stack.callback(self._publish, now=True)
                self._run(stack)
            return self._board.so_far
        finally:
            lock.release()

    def _run(self, stack: contextlib.ExitStack) -> None:
        spec = self._spec
        stack.enter_context(failures_untold())
        metrics = MetricsServer(self._board.figures)
        stack.callback(metrics.close)
        self._board.learn(metrics=metrics.open(*self._choices.metrics))
        self._publish(now=True)
        try:
            start.check_places(spec, self._home, self._master, self._choices)
            if self._given is None:
                start.check_master(spec, self._master)
            groups = stack.enter_context(self._groups())
            cluster = stack.enter_context(
                Cluster(spec.bootstrap, timeout=_QUESTION, settings=spec.kafka)
            )
            topics = start.check_topics(spec, self._way.source, cluster)
            member_id = start.member_of(self._home)
            member = Member(
                groups,
                Membership(spec.group, member_id, topics),
                spec.name,
                lost=self._membership_lost,
            )
            member.join()
            stack.callback(member.leave)
            local = local_path(self._place) is not None
            spark = None if local else self._session(stack)
            checkpoint = self._checkpoint = open_checkpoint(spec.name, self._place, spark)
            remembered = start.check_query(spec, self._home, checkpoint, topics, self._choices)
            self._check_membership()
            position = start.check_group(spec, checkpoint, groups, cluster, topics, self._choices)
            self._home.remember(remembered | {"member": member_id})
            if position is not None and checkpoint.id is not None:
                member.commit(offsets.commits(position, checkpoint.id, checkpoint.finished))
            lag = LagWatch(stack.enter_context(self._groups()), self._lag)
            stack.callback(lag.close)
            if position is not None:
                lag.stands_at(position)
            lag.start()
            self._query(spark or self._session(stack), checkpoint, member, lag)
            member.flush(_LAST_COMMIT)
        except BaseException as error:
            self._board.error(self._clean(failures.sentence(error)))
            self._board.state(State.FAILED)
            raise
        self._board.state(State.STOPPED)

    def _groups(self) -> Groups:
        # The client id of a member says who runs the pipeline, to whoever looks at the group.
        settings = {name: value for name, value in self._spec.kafka.items() if name != "client.id"}
        return groups_of(self._spec.bootstrap, settings, timeout=_QUESTION, client_id=client_id())

    # -- Spark

    def _session(self, stack: contextlib.ExitStack) -> SparkSession:
        if self._given is not None:
            spark = self._given
            stack.enter_context(lend(spark, self._spec))
        else:
            spark = self._own_session(stack)
        if masters.is_remote(self._master):
            watch = ExecutorWatch(
                spark,
                self._spec.name,
                self._executors,
                lambda: self._preparing and self._gate.closed,
            )
            watch.start()
            stack.callback(watch.close)
        self._audience.session_started()
        return spark

    def _own_session(self, stack: contextlib.ExitStack) -> SparkSession:
        try:
            spark = start_session(self._spec, self._home, self._master)
        except NotStarted as error:
            LOGGER.exception("Spark has not started on %s.", self._master)
            raise Failed(f"pipeline {self._spec.name} {self._clean(str(error))}") from error
        stack.callback(_end, spark)
        spark.sparkContext.setLogLevel("WARN")
        return spark

    def _executors(self, missing: str | None) -> None:
        """A cluster has nobody to run the tasks, or has again."""
        self._board.waits("executors", missing)
        if missing is not None:
            self._board.error(missing)
        self._publish(now=True)

    def _query(
        self, spark: SparkSession, checkpoint: Checkpoint, member: Member, lag: LagWatch
    ) -> None:
        """Queries, one after the other: one that ended for what passes is started again."""
        place = Place(
            self._spec.name,
            self._place,
            str(self._home.staging),
            self._spec.bootstrap,
            tuple(self._spec.kafka.items()),
        )
        self._preparing = True
        with self._cancelling(spark):
            raw = self._prepared(spark, place)
        attempt = 1
        self._preparing = False
        while raw is not None and not self._gate.closed:
            self._replayed = checkpoint.unfinished
            self._committed = checkpoint.finished
            self._raised = None
            self._known.clear()
            began_after = self._gate.finished
            self._staging.wait_for(None)  # whatever a process said that is gone
            try:
                query = self._started(raw)
                self._watch(spark, query, checkpoint, member, lag)
            except _NoSpace as full:
                self._wait_for_space(str(full))
                continue
            except _Away as why:
                attempt = 2 if self._gate.finished != began_after else attempt + 1
                wait = wait_before(self._spec.on_error, attempt)
                self._note(Note(Event.OUTAGE, f"{why}; the query is started again in {wait:g} s"))
                self._gate.pause(wait)
                self._board.waits("batch", None)
                continue
            return
        self._check_membership()

    @contextlib.contextmanager
    def _cancelling(self, spark: SparkSession) -> Iterator[None]:
        """Within it, a stop cancels every job, which may wait for brokers or executors."""
        over = threading.Event()

        def look() -> None:
            with contextlib.suppress(Exception):  # Spark is gone, which is said elsewhere
                while not over.wait(_LOOK):
                    if self._gate.closed:
                        spark.sparkContext.cancelAllJobs()

        thread = threading.Thread(target=look, name="cancelling", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _prepared(self, spark: SparkSession, place: Place) -> DataFrame | None:
        """The rows as they come, once the sink is ready for them; None if a stop comes first.

        What is away is waited for, as it is in a batch.
        """
        attempt = 1
        while True:
            try:
                raw = self._way.source.stream(spark, place)
                schema = self._way.transform(self._way.source.rows(raw)).schema
                self._way.sink.prepare(spark, schema, place)
            except Exception as error:
                judged = judge(error)
                if judged.verdict is not Verdict.OUTAGE:
                    if self._gate.closed:
                        return None  # it was interrupted for that
                    raise self._failed(error) from error
                attempt += 1
                wait = wait_before(self._spec.on_error, attempt)
                self._note(Note(Event.OUTAGE, f"{judged.sentence}; next attempt in {wait:g} s"))
                if not self._gate.pause(wait):
                    return None
                continue
            self._board.waits("batch", None)
            return raw

    def _started(self, raw: DataFrame) -> StreamingQuery:
        """The query, under way, with what is known of it told to those who want to know."""
        try:
            query = self._start(raw)
        except Exception as error:
            raise self._failed(error) from error
        self._run_id = str(query.id)
        self._known.set()
        self._board.learn(run=self._run_id)
        self._board.state(State.RUNNING)
        self._publish(now=True)
        LOGGER.info("Pipeline %s runs: query %s on %s.", self._spec.name, query.id, self._master)
        return query

    def _start(self, raw: DataFrame) -> StreamingQuery:
        writer = (
            raw.writeStream.queryName(self._spec.name)
            .foreachBatch(self._batch)
            .option("checkpointLocation", self._place)
        )
        if self._choices.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._spec.trigger:g} seconds").start()

    def _batch(self, frame: DataFrame, number: int) -> None:
        """What Spark calls for every micro-batch."""
        try:
            self._known.wait()
            with self._gate.batch(number):
                reach(Point.AFTER_OFFSET_LOG)
                began = time.monotonic()
                batch = Batch(
                    self._spec.name,
                    self._spec.sink.name,
                    self._run_id,
                    number,
                    replayed=number == self._replayed,
                )
                files = self._checkpoint.files_of(number) if self._checkpoint else ()
                check_files(files, number, frame.sparkSession, replayed=batch.replayed)
                outcome = process(frame, self._way, batch, self._board.so_far)
                self._board.batch(number, outcome, time.monotonic() - began)
                reach(Point.BEFORE_COMMIT_LOG)
        except BaseException as error:
            # Spark would give only a text of it back.
            self._raised = error
            raise

    def _watch(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        checkpoint: Checkpoint,
        member: Member,
        lag: LagWatch,
    ) -> None:
        """Look after the query until it ends, and end it when that is asked for."""
        pause = threading.Event()
        while True:
            try:
                active = query.isActive
            except Exception as error:
                raise self._failed(error) from error
            self._follow(checkpoint, member, lag)
            self._board.waits("group", member.trouble)
            self._look_at_source()
            self._publish()
            if not active:
                break
            if self._lost is not None or self._at_once:
                self._interrupt(spark, query)
                break
            if self._gate.closed and self._settled(checkpoint):
                self._stop(query)
                break
            if self._gate.closed and self._is_silent(member):
                self._give_up(f"its brokers do not answer ({member.trouble})")
                self._interrupt(spark, query)
                break
            pause.wait(_LOOK)
        self._follow(checkpoint, member, lag)
        self._check_membership()
        if self._at_once or self._given_up or isinstance(self._raised, Closed | Stopped):
            return
        ended_by = query.exception()
        if ended_by is not None:
            raise self._failed(self._raised or ended_by)

    def _away(self, error: BaseException) -> str | None:
        """What a query has ended for and that passes. A batch itself waits for what does."""
        return failures.away(error) if self._raised is None else None

    def _look_at_source(self) -> None:
        """A source that keeps its rows beside the checkpoint is asked by a process of Spark's."""
        why = self._staging.waits_for()
        if why == self._source_waits:
            return
        self._source_waits = why
        if why is None:
            LOGGER.warning("Pipeline %s: its source is back.", self._spec.name)
            self._board.waits("source", None)
            return
        sentence = f"its source: {self._clean(why)}"
        LOGGER.warning("Pipeline %s waits for %s", self._spec.name, sentence)
        self._board.waits("source", sentence)
        self._board.error(sentence)

    def _settled(self, checkpoint: Checkpoint) -> bool:
        """Whether nothing would be interrupted: no batch is under way, the last is committed."""
        if self._gate.inside is not None:
            return False
        done, committed = self._gate.finished, checkpoint.finished
        return done is None or (committed is not None and committed >= done)

    def _is_silent(self, member: Member) -> bool:
        """Whether no broker has answered for a while."""
        if member.trouble is None:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()
        since = self._silent_since
        return since is not None and time.monotonic() - since >= _SILENCE

    def _give_up(self, why: str) -> None:
        self._given_up = True
        inside = self._gate.inside
        what = "the next batch" if inside is None else f"batch {inside}"
        self._note(Note(Event.GIVEN_UP, f"{what} is given up: {why}. The next run repeats it"))

    def _stop(self, query: StreamingQuery) -> None:
        """Nobody is in a batch; but whoever plans the next may wait for a broker."""
        try:
            query.stop()
        except Exception as error:
            if failures.is_gone(error) or failures.is_ended(error):
                raise self._failed(error) from error
            self._give_up(failures.sentence(error))

    def _interrupt(self, spark: SparkSession, query: StreamingQuery) -> None:
        self._gate.close()
        # Whatever it says, the query is given up; and whatever its batch tries next.
        with contextlib.suppress(Exception), self._cancelling(spark):
            query.stop()

    def _follow(self, checkpoint: Checkpoint, member: Member, lag: LagWatch) -> None:
        """Show the group what Spark has committed."""
        done = self._gate.finished
        if done is None or done == self._committed:
            return
        finished = checkpoint.finished
        if finished is None or finished < done:
            return
        reach(Point.AFTER_COMMIT_LOG)
        self._committed = done
        position = offsets.progress_of(checkpoint.end(done))
        if position is not None:
            member.commit(offsets.commits(position, self._run_id, done))
            lag.stands_at(position)

    # -- what goes wrong

    def _failed(self, error: BaseException) -> Exception:
        if failures.is_full_disk(error):
            return _NoSpace(failures.sentence(error))
        name = self._spec.name
        if failures.is_gone(error):
            return Failed(
                f"pipeline {name} has lost Spark's Java process (killed, or out of memory?); "
                f"{self._home.spark_log} may say why. Start it again: it goes on where it was"
            )
        if failures.is_ended(error):
            return Failed(
                f"pipeline {name} has lost its Spark: {self._master} has ended the application; "
                f"{self._home.spark_log} may say why. Start it again: it goes on where it was"
            )
        if failures.is_wrong_python(error):
            return Failed(
                f"pipeline {name} needs a {same_minor()} on every machine of {self._master}, as it "
                f"is run with one here: {self._clean(failures.sentence(error))}. Say where it is "
                f"with {TASKS}, or run the pipeline with the Python that they have"
            )
        why = self._away(error)
        if why is not None:
            return _Away(why)
        trace = "".join(traceback.format_exception(error))
        LOGGER.error("Pipeline %s has failed: %s", name, self._clean(trace))
        sentence = self._clean(failures.told(error, name)).rstrip(".")
        log = self._home.log_file
        details = f". Details are in {log}" if is_open(log) else ""
        return Failed(
            f"pipeline {name} has failed: {sentence}. Nothing of the batch counts as done: the "
            f"next run repeats it{details}"
        )

    def _wait_for_space(self, what: str) -> None:
        sentence = (
            f"pipeline {self._spec.name} waits for space, at its checkpoint {self._place} or where "
            f"Spark keeps its files ({what}): free some, and it goes on by itself"
        )
        LOGGER.warning("%s", sentence)
        self._board.error(sentence)
        self._board.waits("space", sentence)
        self._publish(now=True)
        self._gate.pause(_SPACE_PAUSE)
        self._board.waits("space", None)

    def _membership_lost(self, why: str) -> None:
        self._lost = why
        self._gate.close()  # no batch begins, and nobody waits for anything

    def _check_membership(self) -> None:
        if self._lost is not None:
            raise Failed(
                f"pipeline {self._spec.name} was stopped: {self._lost}. Its checkpoint has all "
                f"that was finished; start it again where it should run"
            )

    def _clean(self, text: str) -> str:
        """Without the secrets of the pipeline's file."""
        return scrubbed(text, self._spec.secrets)

    def _note(self, note: Note) -> None:
        note = replace(note, sentence=self._clean(note.sentence))
        LOGGER.warning("Pipeline %s: %s", self._spec.name, note.sentence)
        self._board.note(note)
        self._audience.tell(note)
        self._publish(now=True)

    def _lag(self, records: int | None, seconds: float | None) -> None:
        self._board.learn(lag=records, lag_seconds=seconds)

    # -- what others see

    def _publish(self, *, now: bool = False) -> None:
        figures = self._board.figures()
        moment = time.monotonic()
        if not now and figures.state is self._told_state and moment - self._told < _TELL:
            return
        self._told, self._told_state = moment, figures.state
        with contextlib.suppress(OSError):  # a full disk; the terminal and Prometheus still see it
            self._home.tell(figures.document())
        self._audience.show(figures)


class _NoSpace(Exception):
    """The query ended since something could not be written."""


class _Away(Exception):
    """The query ended since something did not answer."""


def _end(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # its JVM may be gone, which is said elsewhere
        spark.stop()
