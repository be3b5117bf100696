"""A recording proxy that knows only CONNECT, as companies have them: in a thread, or as a program.

    python tests/connect_proxy.py HOST PORT RECORD

The program listens there and appends what passes to a file.
"""

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path


class ConnectProxy:
    """Connects whoever asks for it to the host that is named.

    Args:
        host: the address to listen on.
        port: the port; 0: any free one.
        record: called with every piece that passes, of either direction, and with the heads of requests.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, record: Callable[[bytes], object] = len
    ) -> None:
        self._record = record
        self._listener = socket.create_server((host, port))
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        self.heads: list[bytes] = []

    def serve(self) -> None:
        """Serve until the proxy is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _connect(self, client: socket.socket) -> None:
        with client:
            head = b""
            while not head.endswith(b"\r\n\r\n") and (piece := client.recv(1)):
                head += piece
            self.heads.append(head)
            self._record(head)
            verb, _, rest = head.partition(b" ")
            host, _, port = rest.partition(b" ")[0].decode().rpartition(":")
            try:
                if verb != b"CONNECT":
                    raise OSError("only CONNECT is known")
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with server:
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server)
                back.join()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while content := one.recv(65536):
                self._record(content)
                other.sendall(content)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


if __name__ == "__main__":
    with Path(sys.argv[3]).open("ab", buffering=0) as file:
        ConnectProxy(sys.argv[1], int(sys.argv[2]), file.write).serve()
