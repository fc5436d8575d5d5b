"""The server of one machine: settings go in; models are loaded and answer over HTTP."""

import logging
import socket
import sys
from contextlib import suppress
from functools import partial

import torch
import uvicorn
from fastapi import FastAPI

from bert_core.errors import UserError
from serving.app import start_application
from serving.engine import Engine
from serving.keys import read_keys
from serving.middleware.connections import Connection, Connections, open_files_for
from serving.models import ServedModel
from serving.rollout.aliases import Address
from serving.settings import ServerSettings


def serve(settings: ServerSettings) -> None:
    """Loads the models, prints the server's address, and answers requests."""
    keys = None if settings.api_key_file is None else read_keys(settings.api_key_file)
    logging.basicConfig(
        stream=sys.stderr,
        format="%(message)s",
        level=logging.INFO if settings.log_requests else logging.WARNING,
    )
    with _bind(settings.host, settings.port) as listening:
        sources = settings.models.values()
        addresses = [str(source) for source in sources if isinstance(source, Address)]
        if addresses:
            print(f"asking MLflow for {', '.join(addresses)}", flush=True)
        threads = settings.threads or torch.get_num_threads()
        app, running = start_application(settings, _device(settings), threads, keys)
        try:
            config = uvicorn_config(app, settings)
            listening.listen(config.backlog)  # from here on clients are answered, if not at once
            host, port = listening.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            _print_models(running.engine)
            pages = f"try it at {address}/, the API's page is {address}/docs"
            print(f"ready at {address}, {pages}", flush=True)
            with suppress(KeyboardInterrupt):  # raised after the last requests have ended
                uvicorn.Server(config).run(sockets=[listening])
        finally:
            running.close()


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn serves the application."""
    most, backlog = open_files_for(settings.max_connections)
    if most < settings.max_connections:
        print(
            f"warning: the limit of open files allows {most} connections only:"
            " raise ulimit -n, or give --max_connections",
            file=sys.stderr,
        )
    connections = Connections(most, settings.header_seconds)
    proxies = settings.forwarded_allow_ips
    return uvicorn.Config(
        app,
        settings.host,
        settings.port,
        http=partial(Connection, connections=connections),  # pyright: ignore[reportArgumentType] - it is only called
        ws="none",
        log_level="error",  # not a line for each request that is none
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        backlog=backlog,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )


def _print_models(engine: Engine) -> None:
    # A function of its own, because locals of `serve` would keep the first versions alive.
    for name, model in engine.models.items():
        origin = "" if model.pointer is None else f"version {model.pointer.version}, "
        print(f"{name}: {_described(model)}, {origin}{model.folder}")


def _bind(host: str, port: int) -> socket.socket:
    """Binds the address before anything is loaded.

    Raises `UserError` where it is taken, or not of this machine.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        remedy = "give another --port, 0 for any that is free, or an address of this machine"
        raise UserError(f"cannot listen ({error.strerror})", f"{host}:{port}", remedy) from error
    return bound


def _described(model: ServedModel) -> str:
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
