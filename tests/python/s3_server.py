"""An S3 server (moto) that checks signatures, with one bucket and one user who may read it.

    s3_server.py FOLDER BUCKET PREFIX

Uploads the folder's files, prints the port, the user's key and secret as one line of JSON, and uploads again, saying
`uploaded`, whenever it gets SIGHUP.
"""

import json
import os
import signal
import sys

os.environ.update(AWS_ACCESS_KEY_ID="root", AWS_SECRET_ACCESS_KEY="root", AWS_DEFAULT_REGION="us-east-1")
# Until the user is made, anyone may do anything.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "1000000"
for variable in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
    os.environ.pop(variable, None)

import boto3  # noqa: E402: what it reads from the environment is set above
from moto import settings  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

FOLDER, BUCKET, PREFIX = sys.argv[1:]
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
_, port = server.get_host_and_port()
endpoint = f"http://127.0.0.1:{port}"
s3 = boto3.client("s3", endpoint_url=endpoint)
s3.create_bucket(Bucket=BUCKET)


def upload():
    for name in sorted(os.listdir(FOLDER)):
        with open(os.path.join(FOLDER, name), "rb") as file:
            s3.put_object(Bucket=BUCKET, Key=PREFIX + name, Body=file.read())


def upload_again(*_):
    may = settings.INITIAL_NO_AUTH_ACTION_COUNT
    settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")
    upload()
    settings.INITIAL_NO_AUTH_ACTION_COUNT = may
    print("uploaded", flush=True)


upload()
iam = boto3.client("iam", endpoint_url=endpoint)
iam.create_user(UserName="reader")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="reader")["AccessKey"]
settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
signal.signal(signal.SIGHUP, upload_again)
print(json.dumps({"port": port, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
while True:
    signal.pause()
