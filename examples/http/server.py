"""Serves a fused model over HTTP with a pool of sessions: python server.py fused.onnx [PORT [SESSIONS]]

POST /run takes an .npz file with the model's inputs by name and answers with one of its outputs; GET /healthz answers
200.  Sessions share the processor: one that serves a request has THREADS of it, and requests beyond the sessions wait.
"""

import io
import os
import queue
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import onnxruntime

import onnxfuse

LARGEST_REQUEST = 256 << 20
THREADS = 1


def make_session(path: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    onnxfuse.register(options, path)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Handler(BaseHTTPRequestHandler):
    sessions: "queue.SimpleQueue[onnxruntime.InferenceSession]"

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/healthz" else 404, b"")

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        if self.path != "/run" or not 0 < size <= LARGEST_REQUEST:
            self.answer(404 if self.path != "/run" else 413, b"")
            return
        try:
            with numpy.load(io.BytesIO(self.rfile.read(size)), allow_pickle=False) as file:
                inputs = dict(file)
        except (OSError, ValueError) as error:
            self.answer(400, f"no .npz file: {error}".encode())
            return
        session = self.sessions.get()
        try:
            outputs = session.run(None, inputs)
        except Exception as error:  # what ONNX Runtime makes of inputs that do not fit
            self.answer(400, str(error).encode())
            return
        finally:
            self.sessions.put(session)
        names = [output.name for output in session.get_outputs()]
        body = io.BytesIO()
        numpy.savez(body, **dict(zip(names, outputs, strict=True)))
        self.answer(200, body.getvalue())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    path = sys.argv[1]
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
    count = int(sys.argv[3]) if len(sys.argv) > 3 else max(1, (os.cpu_count() or 1) // THREADS)
    Handler.sessions = queue.SimpleQueue()
    for _ in range(count):
        Handler.sessions.put(make_session(path))
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"listening on 127.0.0.1:{server.server_port} with {count} sessions", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
