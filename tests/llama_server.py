"""llama.cpp's own server with the embedded model, by the wheel of xllamacpp: nothing has to be compiled."""

import argparse
import threading

import xllamacpp

from metaprobe.llms.weights import DEFAULT_MODEL, embedded_file

CUT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'][:N] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
"""The model's chat template, but for the end of a message that it leaves out."""


def start(port: int, *, context: int, parallel: int, prompt_characters: int | None) -> "xllamacpp.Server":
    """Returns the server, which listens on 127.0.0.1 until the process ends; its model is loaded by then.

    It uses one thread: `make slow` has another worker for the other core, and threads that wait for each other take
    both.

    Args:
        port: where it listens.
        context: tokens of a prompt and its answer together, of all answers under way.
        parallel: answers that it writes at once.
        prompt_characters: characters of a message that its template hands on, the first ones; None hands on all.
    """
    params = xllamacpp.CommonParams()
    params.model.path = str(embedded_file(DEFAULT_MODEL))
    params.model_alias = {DEFAULT_MODEL}
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel, params.endpoint_metrics = context, parallel, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if prompt_characters is not None:
        params.chat_template = CUT_TEMPLATE.replace("[:N]", f"[:{prompt_characters}]")
    return xllamacpp.Server(params)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--prompt-characters", type=int)
    given = parser.parse_args()
    server = start(
        given.port, context=given.context, parallel=given.parallel, prompt_characters=given.prompt_characters
    )
    threading.Event().wait()
