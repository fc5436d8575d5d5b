"""Only one promotes: files beside SQLite, claims elsewhere. MLflow and its store are real."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pretraining_runs import REPOSITORY
from registered_models import NAME, store_of_names

from bert_core.errors import UserError
from workflows.promotion.aliases import ModelRegistry, open_registry
from workflows.promotion.history import user_and_host
from workflows.promotion.lock import CLAIM_TAG, Claim, Times, promotion_lock, read_claims
from workflows.tracking.mlflow_run import open_client

QUICK = Times(beat=0.1, lease=3.0, watch=0.5, poll=0.05, choosing=0.5)
ELSEWHERE = "http://mlflow.example.org"

HOLDING = """
import sys, time
from workflows.promotion.aliases import open_registry
from workflows.promotion.lock import promotion_lock
with open_registry(*sys.argv[1:]) as registry, promotion_lock(registry):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return store_of_names(tmp_path_factory.mktemp("store"))


@pytest.fixture
def registry(uri):
    """A model at what is taken for a server: no file lock."""
    return ModelRegistry(open_client(uri), NAME, ELSEWHERE)


def claim(registry, token, number, *, age=0.0, with_file=False):
    """Writes a claim of some other process."""
    written = Claim(
        token=token,
        number=number,
        who="bob@far",
        since="2026-11-23 09:31:05",
        beat=time.time() - age,
        with_file=with_file,
    )
    registry.set_tag(CLAIM_TAG + token, written.model_dump_json())
    return written


@pytest.fixture(autouse=True)
def no_claim_is_left(uri):
    yield
    registry = ModelRegistry(open_client(uri), NAME, ELSEWHERE)
    left = read_claims(registry)
    for each in left:
        registry.delete_tag(CLAIM_TAG + each.token)
    assert not left


def test_a_held_model_is_refused_with_who_holds_it(registry, uri):
    with promotion_lock(registry, QUICK) as held:
        held.check()
        with (
            pytest.raises(UserError, match="another promotion of sentiment is under way") as caught,
            promotion_lock(ModelRegistry(open_client(uri), NAME, ELSEWHERE), QUICK),
        ):
            pass
        assert f"by {user_and_host()} since 20" in str(caught.value)
        held.check()
    with promotion_lock(registry, QUICK):
        pass


def test_whatever_ends_a_promotion_gives_the_model_free(registry, uri):
    with open_registry(NAME, uri) as with_file:
        for each in (registry, with_file):
            with pytest.raises(KeyboardInterrupt), promotion_lock(each, QUICK):
                raise KeyboardInterrupt
            assert not read_claims(registry)
            with promotion_lock(each, QUICK):
                pass


def test_a_holder_says_that_it_lives_for_as_long_as_it_does(registry, uri):
    with promotion_lock(registry, QUICK) as held:
        (first,) = read_claims(registry)
        time.sleep(1.1 * QUICK.lease)
        (later,) = read_claims(registry)
        assert later.beat > first.beat + 1 and later.token == held.token
        with pytest.raises(UserError, match="under way"), promotion_lock(registry, QUICK):
            pass
        held.check()


def test_a_silent_claim_is_watched_and_taken_over(registry, capsys):
    claim(registry, "dead", 1, age=10.0)
    began = time.monotonic()
    with promotion_lock(registry, QUICK) as held:
        assert time.monotonic() - began >= QUICK.watch
        assert [each.token for each in read_claims(registry)] == [held.token]
    assert "promotion by bob@far" in capsys.readouterr().out


def test_a_claim_by_a_wrong_clock_that_beats_is_alive(registry):
    claim(registry, "slow clock", 1, age=500.0)
    stop = threading.Event()

    def beat():
        while not stop.wait(0.1):
            claim(registry, "slow clock", 1, age=500.0)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="by bob@far"), promotion_lock(registry, QUICK):
            pass
    finally:
        stop.set()
        thread.join()
        registry.delete_tag(CLAIM_TAG + "slow clock")


def test_who_still_chooses_is_waited_for_but_not_long(registry):
    claim(registry, "choosing", None)
    began = time.monotonic()
    with pytest.raises(UserError, match="by bob@far"), promotion_lock(registry, QUICK):
        pass
    assert time.monotonic() - began >= QUICK.choosing
    patient = Times(beat=0.1, lease=3.0, watch=0.5, poll=0.05, choosing=20.0)
    later = threading.Timer(0.3, claim, (registry, "choosing", 99))
    later.start()
    with promotion_lock(registry, patient) as held:  # 99 comes after this one
        claim(registry, "another", None)
        held.check()  # who chooses now comes after this one too
    later.join()
    for token in ("choosing", "another"):
        registry.delete_tag(CLAIM_TAG + token)


def test_of_two_claims_the_lower_number_and_then_the_lower_token_is_first(registry):
    claim(registry, "0" * 16, 1)  # as if both had chosen at once: this one's number is 2 then
    with pytest.raises(UserError, match="by bob@far"), promotion_lock(registry, QUICK):
        pass
    registry.delete_tag(CLAIM_TAG + "0" * 16)
    with promotion_lock(registry, QUICK) as held:
        claim(registry, "z" * 16, 1)
        held.check()
        claim(registry, "0" * 16, 1)
        with pytest.raises(UserError, match="the claim on sentiment was lost"):
            held.check()
    for token in ("z" * 16, "0" * 16):
        registry.delete_tag(CLAIM_TAG + token)


def test_a_claim_that_others_took_for_dead_is_not_written_again(registry):
    with promotion_lock(registry, QUICK) as held:
        registry.delete_tag(CLAIM_TAG + held.token)
        time.sleep(5 * QUICK.beat)
        assert not read_claims(registry)
        with pytest.raises(UserError, match="the claim on sentiment was lost"):
            held.check()


def test_of_many_at_once_one_is_in_at_a_time_and_none_wait_for_ever(uri):
    inside, most, won, refused = [], [], [], []

    def attempt(number):
        registry = ModelRegistry(open_client(uri), NAME, ELSEWHERE)
        try:
            with promotion_lock(registry, QUICK) as held:
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.2)
                held.check()
                inside.remove(number)
                won.append(number)
        except UserError as error:
            assert "under way" in str(error), error
            refused.append(number)

    for _ in range(3):
        before = len(won)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(attempt, range(4)))
        assert len(won) > before
    assert max(most) == 1 and len(won) + len(refused) == 12


def test_beside_sqlite_a_file_is_locked_which_ends_with_its_process(uri):
    command = [sys.executable, "-c", HOLDING, NAME, uri]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with open_registry(NAME, uri) as registry:
        began = time.monotonic()
        with pytest.raises(UserError, match="under way") as caught, promotion_lock(registry):
            pass
        assert f"by {user_and_host()} since 20" in str(caught.value)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        (left,) = read_claims(registry)
        assert left.with_file
        with promotion_lock(registry) as held:  # and its claim counts for nothing
            assert [each.token for each in read_claims(registry)] == [held.token]
        assert time.monotonic() - began < 20


def test_a_claim_at_a_server_over_the_same_store_keeps_a_file_lock_out(uri):
    with open_registry(NAME, uri) as registry:
        claim(registry, "server", 1)
        with pytest.raises(UserError, match="by bob@far"), promotion_lock(registry, QUICK):
            pass
        registry.delete_tag(CLAIM_TAG + "server")


def test_a_store_that_cannot_be_written_beside(uri, tmp_path):
    registry = ModelRegistry(open_client(uri), NAME, f"sqlite:///{tmp_path}/none/mlflow.db")
    with pytest.raises(UserError, match="cannot lock the store"), promotion_lock(registry, QUICK):
        pass
