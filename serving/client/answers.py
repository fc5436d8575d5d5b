"""Answers as bytes -> what a server says of itself, or how it refuses."""

from http import HTTPStatus

from pydantic import ValidationError

from serving.client.errors import AnswerError, RefusalError
from serving.client.exchange import Lost, Reply
from serving.client.results import Info
from serving.limits import Limits
from serving.schemas.fields import Problem


def is_answer(reply: Reply) -> bool:
    """Whether a server has not refused."""
    return 200 <= reply.status < 300


def refusal_of(reply: Reply) -> RefusalError:
    """A refusal as an error."""
    return refused(problem_in(reply), reply)


def refused(problem: Problem, reply: Reply) -> RefusalError:
    """A problem as an error, with what is known of its request."""
    request_id = reply.headers.get("X-Request-Id")
    return RefusalError(problem, reply.attempts, reply.seconds, request_id)


def problem_in(reply: Reply) -> Problem:
    """The problem document of a refusal, or one made of its status alone."""
    try:
        return Problem.model_validate_json(reply.body)
    except ValidationError:
        known = reply.status in list(HTTPStatus)
        return Problem(
            title=HTTPStatus(reply.status).phrase if known else "Refused",
            status=reply.status,
            detail="it comes without a problem document, so not from the server itself",
            remedy="see what stands before the server, and that the address is the server's",
        )


def info_of(reply: Reply, address: str) -> Info:
    """What a server says of itself; raises `RefusalError`, and `AnswerError` for anything else."""
    if not is_answer(reply):
        raise refusal_of(reply)
    try:
        return Info.model_validate_json(reply.body)
    except ValidationError as error:
        raise AnswerError(address, wrong_field(error)) from None


def limits_of(reply: Reply, address: str) -> Limits:
    """What a server takes; of one that does not show it, what servers take by default."""
    return info_of(reply, address).limits if is_answer(reply) else Limits()


def is_well(outcome: Reply | Lost) -> bool:
    """Whether a server says that it is; raises `RefusalError` where the address is not for that."""
    if isinstance(outcome, Lost) or outcome.passes:
        return False
    if not is_answer(outcome):
        raise refusal_of(outcome)
    return True


def wrong_field(error: ValidationError) -> str:
    """What is wrong with an answer, without what stands in it."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'answer'}: {first['msg']}"
