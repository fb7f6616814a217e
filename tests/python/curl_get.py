"""Reads a whole dataset from a Forebay server with libcurl's HTTP/3 (ngtcp2), through pycurl or curl_cffi.

usage: curl_get.py pycurl|curl_cffi URL DATASET CA_FILE

Prints what h3_get.py prints. Only HTTP/3 will do: there is no falling back.
"""

import hashlib
import io
import json
import sys
import urllib.parse

PATIENCE = 60


class Pycurl:
    """All of a sample's fields at once, multiplexed on one connection."""

    def __init__(self, ca_file):
        import pycurl

        self.curl, self.ca_file = pycurl, ca_file
        self.multi = pycurl.CurlMulti()
        self.multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)

    def get(self, urls):
        curl, answers, handles = self.curl, [], []
        for url in urls:
            handle, body = curl.Curl(), io.BytesIO()
            handle.setopt(curl.URL, url)
            handle.setopt(curl.HTTP_VERSION, curl.CURL_HTTP_VERSION_3ONLY)
            handle.setopt(curl.CAINFO, self.ca_file)
            handle.setopt(curl.WRITEDATA, body)
            handle.setopt(curl.TIMEOUT, PATIENCE)
            handle.setopt(curl.PIPEWAIT, 1)
            self.multi.add_handle(handle)
            answers.append(body)
            handles.append(handle)
        running = len(handles)
        while running:
            self.multi.select(1.0)
            _, running = self.multi.perform()
        _, _, failed = self.multi.info_read(len(handles))
        if failed:
            raise SystemExit(f"{urls}: {[(code, message) for _, code, message in failed]}")
        statuses = [handle.getinfo(curl.RESPONSE_CODE) for handle in handles]
        for handle in handles:
            if handle.getinfo(curl.INFO_HTTP_VERSION) != curl.CURL_HTTP_VERSION_3:
                raise SystemExit("not over HTTP/3")
            self.multi.remove_handle(handle)
            handle.close()
        return [(status, body.getvalue()) for status, body in zip(statuses, answers)]


class CurlCffi:
    """One after the other on one connection, as strict as its library: a stream closed untidily is an error."""

    def __init__(self, ca_file):
        from curl_cffi import CurlHttpVersion, requests

        self.session = requests.Session(verify=ca_file, http_version=CurlHttpVersion.V3ONLY, timeout=PATIENCE)
        self.version = CurlHttpVersion.V3

    def get(self, urls):
        answers = [self.session.get(url) for url in urls]
        for answer in answers:
            if answer.http_version != self.version:
                raise SystemExit(f"not over HTTP/3 but {answer.http_version}")
        return [(answer.status_code, answer.content) for answer in answers]


def main():
    kind, url, dataset, ca_file = sys.argv[1:]
    client = {"pycurl": Pycurl, "curl_cffi": CurlCffi}[kind](ca_file)
    base = f"{url}/v1/datasets/{urllib.parse.quote(dataset, safe='')}"

    def get(urls):
        answers = client.get(urls)
        for one, (status, body) in zip(urls, answers):
            if status != 200:
                raise SystemExit(f"{one}: {status} {body[:500]!r}")
        return [body for _, body in answers]

    samples = json.loads(get([base])[0])["samples"]
    for ordinal in range(samples):
        about = json.loads(get([f"{base}/samples/{ordinal}"])[0])
        names = [field["name"] for field in about["fields"]]
        bodies = get([f"{base}/samples/{ordinal}/{urllib.parse.quote(name, safe='')}" for name in names])
        fields = {name: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in zip(names, bodies)}
        print(json.dumps({"ordinal": ordinal, "key": about["key"], "fields": fields}))


main()
