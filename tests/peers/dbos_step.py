"""What one step of DBOS Transact costs on Postgres: statements, commits, flushes and log.

    python3 -m venv venv && venv/bin/pip install dbos==3.4.0
    DATABASE_URL=postgres://… venv/bin/python tests/peers/dbos_step.py

It needs a server of Postgres 14 to 17 with fsync on, which nobody else uses. A step is what a workflow of
11 steps takes beyond one of a single step, divided by 10; a workflow of one step is shown as well, because a
single protected call needs both. The step does nothing and returns 200 bytes, like the handler of our own
benchmark.
"""

import os
import uuid

import sqlalchemy
from dbos import DBOS
from sqlalchemy import event

ROUNDS = int(os.environ.get("ROUNDS", "200"))
counts = {"statements": 0, "commits": 0}


@event.listens_for(sqlalchemy.Engine, "before_cursor_execute")
def counted(*_):
    counts["statements"] += 1


@event.listens_for(sqlalchemy.Engine, "commit")
def committed(*_):
    counts["commits"] += 1


@DBOS.step()
def step() -> str:
    return "r" * 200


@DBOS.workflow()
def workflow(steps: int) -> None:
    for _ in range(steps):
        step()


def state(engine):
    with engine.connect() as connection:
        # Sessions report what they did with some delay, but flushes and log are exact at once for the server.
        row = connection.exec_driver_sql(
            "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, (SELECT wal_sync FROM pg_stat_wal)::float8"
        )
        return tuple(row.one())


def measured(engine, steps: int):
    for _ in range(20):
        workflow(steps)
    log, flushes = state(engine)
    counts.update(statements=0, commits=0)
    for _ in range(ROUNDS):
        workflow(steps)
    statements, commits = counts["statements"], counts["commits"]
    log_after, flushes_after = state(engine)
    return [
        value / ROUNDS
        for value in (statements, commits, flushes_after - flushes, log_after - log)
    ]


def main() -> None:
    server = sqlalchemy.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
    name = f"dbos_{uuid.uuid4().hex[:12]}"
    outside = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
    with outside.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    url = server.set(database=name).render_as_string(hide_password=False)
    DBOS(config={"name": "step", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()
    try:
        one, eleven = measured(outside, 1), measured(outside, 11)
    finally:
        DBOS.destroy()
        outside.dispose()
        outside = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
        with outside.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    print("| | statements | commits | flushes | bytes of log |")
    print("| --- | --- | --- | --- | --- |")
    print("| workflow of one step | " + " | ".join(f"{value:.1f}" for value in one) + " |")
    step_alone = [(many - single) / 10 for many, single in zip(eleven, one)]
    print("| a further step | " + " | ".join(f"{value:.1f}" for value in step_alone) + " |")


if __name__ == "__main__":
    main()
