"""Stands for the package docker, which adc-streaming's tests start a broker with: there is none, and none is needed."""

from typing import ClassVar


class Anything:
    attrs: ClassVar = {"NetworkSettings": {"Ports": {"9092/tcp": [{"HostIp": "", "HostPort": "9092"}]}}}
    name = "none"

    def list(self, **_: object) -> list[object]:
        return []

    def create(self, **_: object) -> "Anything":
        return Anything()

    run = create

    def reload(self) -> None: ...

    stop = remove = reload

    def exec_run(self, command: str) -> tuple[int, bytes]:
        return 0, b"no certificate"


class Client:
    networks = containers = Anything()


from_env = Client
