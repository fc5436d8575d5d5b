"""`python -m serving --model FOLDER|models:/NAME@ALIAS …`: models over HTTP, on one machine."""

import logging
import socket
import sys
from contextlib import suppress

import torch
import uvicorn

from bert_core.errors import UserError
from bert_core.memory import leave_what_exists_alone
from serving.app import create_app
from serving.engine import Engine
from serving.keys import read_keys
from serving.model_sources import fetched
from serving.models import ServedModel
from serving.pointers import Address
from serving.settings import ServerSettings, parse_arguments


def main() -> int:
    """Serves until it is told to stop; 2 for a `UserError`."""
    try:
        serve(parse_arguments(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def serve(settings: ServerSettings) -> None:
    """Loads the models, says where they are to be had, and answers."""
    keys = None if settings.api_key_file is None else read_keys(settings.api_key_file)
    models = settings.models
    logging.basicConfig(
        stream=sys.stderr,
        format="%(message)s",
        level=logging.INFO if settings.log_requests else logging.WARNING,
    )
    listening = _bind(settings.host, settings.port)
    addresses = [str(each) for each in models.values() if isinstance(each, Address)]
    if addresses:
        print(f"asking MLflow for {', '.join(addresses)}", flush=True)
    sources = fetched(models, tracking_uri=settings.tracking_uri, cache=settings.cache)
    threads = settings.threads or torch.get_num_threads()
    engine = Engine.of_folders(
        *(sources, _device(settings), settings.limits, threads, settings.precision)
    )
    try:
        app = create_app(engine, keys, settings.cors_origins)
        config = uvicorn.Config(
            app,
            settings.host,
            settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=settings.shutdown_seconds,
        )
        listening.listen(config.backlog)  # from here on a client is answered, if not at once
        host, port = listening.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for name, model in engine.models.items():
            origin = "" if model.pointer is None else f"version {model.pointer.version}, "
            print(f"{name}: {_described(model)}, {origin}{model.folder}")
        print(f"ready at {address}, the API's page is {address}/docs", flush=True)
        leave_what_exists_alone()
        with suppress(KeyboardInterrupt):  # it has let requests end, and then tells its caller
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        engine.close()


def _bind(host: str, port: int) -> socket.socket:
    """A socket that has the address, before anything is loaded.

    Raises `UserError` where it is taken, or not of this machine.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise UserError(
            f"cannot listen ({error.strerror})",
            f"{host}:{port}",
            "give another --port, 0 for any that is free, or an address of this machine",
        ) from error
    return bound


def _described(model: ServedModel) -> str:
    """What a model can be asked."""
    if model.task_name is not None:
        return model.task_name
    if "masked_token" in model.model.heads:
        return "an encoder with its pre-training heads"
    if model.config.is_decoder:
        return "an encoder that reads from left to right"
    return "an encoder without heads"


def _device(settings: ServerSettings) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise UserError("no GPU", "--device cuda", "take auto or cpu")
    return torch.device("cuda" if settings.device != "cpu" and has_gpu else "cpu")


if __name__ == "__main__":
    sys.exit(main())
