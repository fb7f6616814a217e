"""A web server for a folder, which answers as the first part of the path says.

/plain/NAME   as it should: ranges, entity tags
/whole/NAME   ignores Range
/busy/NAME    429 with Retry-After: 1 to the first request for each range, then as it should
/down/NAME    503 to the first two requests for each range, then as it should
/dead/NAME    503 always
/later/NAME   429 with Retry-After: 3600 always
/cut/NAME     half of what is asked for, then closes the connection
/drip/NAME    slowly, in pieces
/stall/NAME   half of what is asked for, then nothing more, to the first request for each range
/bare/NAME    as it should, but without entity tags and times
/denied/NAME  403
/lame/NAME    the whole as it should; of parts a KiB at a time, 20 in a second
/shift/NAME   half of what is asked for, then cuts; from the second request on it is another object, which it says
/mute/NAME    the same, but whoever asks for the first object (If-Match) gets the other one, under its own tag
/short/NAME   of each part half, and says so
/long/NAME    more than what was asked for, under a length that fits what was asked for
/wrong/NAME   another part than what was asked for, and says so
/liar/NAME    says of the whole that it has 2^42 bytes more
/grown/NAME   HEAD says that it has 2^42 bytes more

Prints its port. HEAD is answered as it should be, but as said above.
"""

import email.utils
import hashlib
import os
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler

FOLDER = sys.argv[1]
SEEN = {}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def refuse(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def times(self):
        """How often this was asked for before: the same range, or the rest of it."""
        key = (self.path, (self.headers.get("Range") or "").split("-")[-1])
        with LOCK:
            SEEN[key] = SEEN.get(key, -1) + 1
            return SEEN[key]

    def answer(self, body):
        _, mode, name = (self.path + "/").split("/", 2)
        try:
            with open(os.path.join(FOLDER, name.rstrip("/")), "rb") as file:
                data = file.read()
                changed = os.fstat(file.fileno()).st_mtime
        except OSError:
            return self.refuse(404)
        if body:
            if mode == "denied":
                return self.refuse(403)
            if mode == "dead":
                return self.refuse(503)
            if mode == "later":
                return self.refuse(429, Retry_After="3600")
            if mode == "busy" and self.times() < 1:
                return self.refuse(429, Retry_After="1")
            if mode == "down" and self.times() < 2:
                return self.refuse(503)
        if body and mode in ("shift", "mute") and self.times() > 0:
            data = bytes(byte ^ 1 for byte in data)
        tag = '"%s"' % hashlib.sha1(data).hexdigest()
        if mode != "mute" and self.headers.get("If-Match", tag) != tag:
            return self.refuse(412)
        begin, end = 0, len(data)
        part = self.headers.get("Range") if mode != "whole" else None
        if part:
            begin, last = part.removeprefix("bytes=").split("-")
            begin, end = int(begin), min(int(last) + 1, len(data))
            if mode == "short":
                end = (begin + end + 1) // 2
            if mode == "wrong":
                begin, end = begin + 512, end + 512
            total = len(data) + (2**42 if mode == "liar" else 0)
            self.send_response(206)
            self.send_header("Content-Range", "bytes %d-%d/%d" % (begin, end - 1, total))
        else:
            self.send_response(200)
        if mode != "bare":
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", email.utils.formatdate(changed, usegmt=True))
        claimed = 2**42 if mode == "grown" and not body else 0
        self.send_header("Content-Length", str(end - begin + claimed))
        self.end_headers()
        if body:
            whole = begin == 0 and end == len(data)
            self.send("plain" if mode == "lame" and whole else mode, data[begin:end])

    def send(self, mode, data):
        half = (len(data) + 1) // 2
        if mode in ("cut", "shift", "mute") and len(data) > 1:
            self.wfile.write(data[:half])
            self.close_connection = True
        elif mode == "stall" and self.times() < 1:
            self.wfile.write(data[:half])
            self.wfile.flush()
            time.sleep(60)
            self.close_connection = True
        elif mode == "lame":
            for at in range(0, len(data), 1024):
                self.wfile.write(data[at:at + 1024])
                self.wfile.flush()
                time.sleep(0.05)
        elif mode == "long":
            self.wfile.write(data + b"more" * 1000)
            self.close_connection = True
        elif mode == "drip":
            for at in range(0, len(data), 16384):
                self.wfile.write(data[at:at + 16384])
                self.wfile.flush()
                time.sleep(0.02)
        else:
            self.wfile.write(data)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request, address):
        pass  # clients may go away


with Server(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
