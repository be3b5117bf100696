"""The paper's Algorithm 1: a cohort, orders, replies into the mean, a server step, a commit.

Federated Learning with Partial Model Personalization
    K. Pillutla, K. Malik, A. Mohamed, M. Rabbat, M. Sanjabi, L. Xiao. ICML 2022.
    https://arxiv.org/abs/2204.03809

Fine-tuning and evaluation are rounds over blocks of devices, without a step on u, so they are committed
and resumed like training rounds.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from partita.protocol import Executor, MeasuresTime
from partita.server.round import State, ask
from partita.training.journal import Journal
from partita.training.plan import Turn
from partita.training.rounds import Round
from partita.training.stages import ServerStage


def run_rounds(
    stage: ServerStage, state: State, turns: Iterable[Turn], executor: Executor, journal: Journal
) -> Iterator[Round]:
    """Run the rounds of a stage and yield each one after its commit.

    Args:
        stage: the server's side of the stage.
        state: u and the server optimizer's state before the first of these rounds.
        turns: the rounds.
        executor: carries out the visits.
        journal: commits the rounds.

    Raises:
        TooManyFailed: more devices failed in a training round than the plan allows.
    """
    clock = _clock_of(executor)
    for turn in turns:
        cohort = stage.cohort(turn)
        orders = stage.orders(turn, cohort, state)
        mean = stage.aggregator(turn, state)
        # Devices update v_i and u (`device/visit.py`): v_i stays there, the change of u comes back.
        begin = clock()
        outcome = ask(orders, executor, mean, wanted=stage.wanted(turn))
        seconds = clock() - begin
        if turn.trains_shared:
            stage.limit.check(turn, outcome)
        if mean is not None and outcome.heard:
            state = stage.server.step(state, mean.value(), heard=len(outcome.heard))
        done = Round(stage, turn, orders=orders, outcome=outcome, state=state, seconds=seconds)
        stage.add(turn, done.line)
        commit = done.commit
        journal.commit(commit, state, done.line, done.rows if turn.final else [])
        executor.close(commit.label, commit.counted, commit.asked)
        yield done


def _clock_of(executor: Executor) -> Callable[[], float]:
    """Return a clock of the processor time of this process, and of the executor's own."""
    if isinstance(executor, MeasuresTime):
        return lambda: time.process_time() + executor.seconds
    return time.process_time
