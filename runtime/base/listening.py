"""A bound TCP socket for a server that speaks to event loops."""

import socket


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Bind ``host``:``port`` (0: any free port); who serves on the socket listens.

    The protocol is named because event loops set TCP_NODELAY only on sockets that say TCP. Without it the second small
    write of an answer waits for the client's delayed acknowledgement of the first, about 40 ms.

    Raises:
        OSError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
