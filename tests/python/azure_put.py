"""Makes a container in Azure Blob Storage, or what behaves like it, and puts a folder's files there.

    azure_put.py ENDPOINT ACCOUNT KEY CONTAINER PREFIX FOLDER
"""

import base64
import email.utils
import hashlib
import hmac
import os
import sys
import urllib.parse
import urllib.request

ENDPOINT, ACCOUNT, KEY, CONTAINER, PREFIX, FOLDER = sys.argv[1:]


def put(path, query, headers, body):
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02", **headers}
    named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    asked = "".join(f"\n{name}:{value}" for name, value in sorted(query.items()))
    length, kind = str(len(body) or ""), "application/octet-stream"
    # The account's name stands twice: the emulator has it in the path.
    signed = f"PUT\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{named}/{ACCOUNT}/{ACCOUNT}/{path}{asked}"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers.update({"Content-Type": kind, "Content-Length": str(len(body))})
    url = f"{ENDPOINT}/{ACCOUNT}/{path}?{urllib.parse.urlencode(query)}"
    urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers, method="PUT"), timeout=30).read()


put(CONTAINER, {"restype": "container"}, {}, b"")
for name in sorted(os.listdir(FOLDER)):
    with open(os.path.join(FOLDER, name), "rb") as file:
        put(f"{CONTAINER}/{PREFIX}{urllib.parse.quote(name)}", {}, {"x-ms-blob-type": "BlockBlob"}, file.read())
