"""What MLflow has signed, and what others have made up or sent again."""

import time

import pytest
from mlflow.webhooks.delivery import _generate_hmac_signature
from starlette.datastructures import Headers

from bert_core.errors import UserError
from serving import webhook
from serving.problems import RequestError
from serving.webhook import Deliveries, read_secret

SECRET = "a secret of MLflow's, ünd more"
NOW = 1_800_000_000.0
BODY = '{"entity": "model_version_alias"}'


def signed(delivery="1", at=NOW, body=BODY, secret=SECRET):
    """Headers as MLflow makes them."""
    timestamp = str(int(at))
    return {
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": timestamp,
        "X-MLflow-Signature": _generate_hmac_signature(secret, delivery, timestamp, body),
    }


@pytest.fixture
def deliveries():
    return Deliveries(SECRET.encode(), now=lambda: NOW)


def test_what_mlflow_signs_is_new_once(deliveries):
    assert deliveries.is_new(Headers(signed()), BODY.encode())
    assert not deliveries.is_new(Headers(signed()), BODY.encode())
    assert deliveries.is_new(Headers(signed("2")), BODY.encode())
    deliveries.forget(Headers(signed()))
    assert deliveries.is_new(Headers(signed()), BODY.encode())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (signed(secret="another"), BODY),
        (signed(), BODY + " "),
        (signed("1") | {"X-MLflow-Delivery-Id": "2"}, BODY),
        (signed() | {"X-MLflow-Timestamp": str(int(NOW) + 1)}, BODY),
        (signed() | {"X-MLflow-Signature": "v1,"}, BODY),
        (signed() | {"X-MLflow-Signature": "é"}, BODY),
        ({}, BODY),
        (signed(at=NOW - 301), BODY),
        (signed(at=NOW + 301), BODY),
    ],
)
def test_what_is_forged_or_not_of_these_minutes_is_refused(deliveries, headers, body):
    with pytest.raises(RequestError) as told:
        deliveries.is_new(Headers(headers), body.encode())
    assert told.value.problem.status == 401
    assert deliveries.is_new(Headers(signed()), BODY.encode()), "MLflow's own is still new"


def test_little_is_remembered(monkeypatch):
    monkeypatch.setattr(webhook, "_MOST_KNOWN", 10)
    now = [NOW]
    deliveries = Deliveries(SECRET.encode(), now=lambda: now[0])
    for number in range(30):
        assert deliveries.is_new(Headers(signed(str(number))), BODY.encode())
    assert len(deliveries._known) <= 11
    assert not deliveries.is_new(Headers(signed("29")), BODY.encode())
    now[0] += 601
    assert deliveries.is_new(Headers(signed("30", at=now[0])), BODY.encode())
    assert list(deliveries._known) == ["30"]


def test_a_secret_is_a_file_with_something_in_it(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(UserError, match="no secret"):
        read_secret(path)
    path.write_text(" \n")
    with pytest.raises(UserError, match="no secret in the file"):
        read_secret(path)
    path.write_text(f"{SECRET}\n")
    headers = Headers(signed(at=time.time()))
    assert Deliveries(read_secret(path)).is_new(headers, BODY.encode())
