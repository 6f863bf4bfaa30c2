"""An application behind Flask-Limiter with a budget for each path."""
import os
import time

import flask
from flask_limiter import Limiter

app = flask.Flask(__name__)
limiter = Limiter(
    lambda: flask.request.path,
    app=app,
    default_limits=[os.environ["LIMIT"]],
    strategy=os.environ["STRATEGY"],
    storage_uri="memory://",
    headers_enabled=True,
)


@app.route("/ready")
@limiter.exempt
def ready():
    return os.environ["TOKEN"]


@app.route("/<path:path>")
def served(path):
    time.sleep(float(os.environ["SERVICE"]))
    return "ok\n"
