"""What to set, for each fault and engine: the options that vLLM, SGLang, llama.cpp and others have for it."""

from collections.abc import Mapping

from metaprobe.llms.doctor import Interview
from metaprobe.records.reading import as_list, fields, text

_OWNERS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "me": "llama-cpp-python",
    "library": "Ollama",
}
"""What an engine's /models calls the owner of its models -> the engine."""

_ANY = ""
_SPECULATION = "switch speculative decoding off"
_REMEDIES: Mapping[str, Mapping[str, str]] = {
    "address": {_ANY: "check that URL is the address of an OpenAI-compatible API; it usually ends in /v1"},
    "given": {
        "llama-cpp-python": "start the server with --logits_all true",
        "llama.cpp": f"ask for top_logprobs of at least 1, and {_SPECULATION} (no -md, no --spec-type)",
        "Ollama": "use Ollama 0.12.11 or later: older versions drop logprobs without a word",
        _ANY: "ask another endpoint or model: LiteLLM drops logprobs under drop_params (name them in"
        " allowed_openai_params), FastDeploy wants --enable-logprob, llama-cpp-python --logits_all true",
    },
    "fails": {
        "llama-cpp-python": "start the server with --logits_all true",
        "vLLM": "raise --max-logprobs if it refuses the number; else update vLLM or its hardware plug-in",
        "SGLang": "send top_p 1: a token that top_p rules out has -inf, which is no JSON; else update SGLang",
        _ANY: "ask another model (OpenAI's reasoning models refuse logprobs), update the server, or name logprobs and"
        " top_logprobs in LiteLLM's allowed_openai_params",
    },
    "top": {
        "vLLM": f"raise --max-logprobs; {_SPECULATION} if alternatives are missing",
        _ANY: "predictors that read alternatives will refuse these answers; ask for as many as the server allows",
    },
    "again": {_ANY: "run doctor again: a request that failed once may fail again"},
    "fewer": {
        _ANY: "train and score with as many alternatives as come; the sampler's top_k or top_p may take the rest"
    },
    "ids": {_ANY: "switch return_tokens_as_token_ids off: whether tokens are the answer's cannot be checked by ids"},
    "refused": {_ANY: "predict refuses this answer for the reason given; leave such answers out, or mend the server"},
    "echo": {_ANY: "switch off what repeats the prompt: echo, or TGI's return_full_text"},
    "likeliest": {
        _ANY: "the likeliest tokens stand in place of the drawn ones: report it to the server's authors; until then"
        " only answers at temperature 0 can be scored"
    },
    "part": {
        "Ollama": "update Ollama, and do not stream",
        _ANY: f"some tokens come without numbers: {_SPECULATION}, prefix caching of answers and token healing; do not"
        " stream if only streams lack them",
    },
    "more": {
        _ANY: "tokens outside of the text come with numbers: switch off echo and TGI's decoder_input_details, name stop"
        " texts as end tokens, or leave the numbers of such tokens out"
    },
    "shifted": {_ANY: "the numbers are of the next token: update the server; do not score its answers until then"},
    "usage": {
        _ANY: "nothing checks that all tokens have numbers; send stream_options {include_usage: true}, or let the"
        " server count"
    },
    "null": {_ANY: "a missing number cannot be scored: ask for fewer alternatives, top_p 1 and top_k off"},
    "other": {
        "SGLang": "do not stream with several tokens a chunk: set --stream-interval 1 and no speculative decoding",
        _ANY: f"numbers and alternatives are not of one token: {_SPECULATION}, and update the server",
    },
    "placeholder": {
        "llama.cpp": "switch speculative decoding off: no -md (--model-draft), no --spec-type",
        "llama-cpp-python": "start the server with --logits_all true, and without --draft_model",
        "vLLM": "start vLLM without --speculative-config, or update it",
        "SGLang": "start SGLang without --speculative-algorithm",
        _ANY: f"{_SPECULATION}; OpenAI writes -9999 for a token outside of the likeliest 20: lower the temperature",
    },
    "positive": {_ANY: "these are probabilities or logits: set the server to give log-probabilities (raw_logprobs)"},
    "mode": {_ANY: "tell metaprobe what you know: logprobs_mode=raw or processed (collect: --api logprobs_mode=raw)"},
    "raw": {_ANY: "tell metaprobe: logprobs_mode=raw (collect: --api logprobs_mode=raw)"},
    "processed": {
        "vLLM": "start vLLM with --logprobs-mode raw_logprobs",
        "SGLang": "start SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB=1",
        "llama.cpp": "send post_sampling_probs false",
        _ANY: "set raw log-probabilities (raw_logprobs) in the server, or train and score at one temperature with"
        " logprobs_mode=processed",
    },
    "penalty": {
        _ANY: "a penalty or filter changes what is drawn; switch it off by --extra-body, and in your own requests:"
        ' {"repeat_penalty": 1.0, "repetition_penalty": 1.0, "min_p": 0.0, "top_k": 0}'
    },
    "talks": {_ANY: "look at a longer answer of your own: its finish_reason should be stop"},
    "finish": {_ANY: "whether an answer was cut is not known: leave max_tokens away, or compare usage with max_tokens"},
    "limit": {_ANY: "the server ignores max_tokens: bound answers in the server"},
    "stream": {_ANY: "do not stream answers that are to be scored: watch and the gate have nothing to read there"},
    "chunks": {
        "SGLang": "set --stream-interval 1 and no speculative decoding: each chunk repeats its first token's"
        " alternatives",
        _ANY: "do not stream answers that are to be scored",
    },
    "done": {_ANY: "a proxy before this server may take the stream for cut; update the server"},
    "once": {_ANY: "ask n times for one answer each"},
    "tool": {
        "vLLM": "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME",
        "SGLang": "start SGLang with --tool-call-parser NAME",
        "llama.cpp": "start llama-server with --jinja",
        _ANY: "set the server's parser of tool calls, if tools are used: a call in words is scored as an answer",
    },
    "think": {_ANY: "if this model thinks, switch it on by --extra-body and ask again"},
    "thinking": {
        "vLLM": "ask without --reasoning-parser, or raise --thinking-tokens if the model was cut while it thought",
        _ANY: "raise --thinking-tokens if the model was cut while it thought; else switch the server's reasoning"
        " parser off, or the thinking",
    },
    "other api": {_ANY: "use chat completions"},
}


def engine_of(said: Interview) -> str:
    """The engine by what it says of itself; empty where it is not known."""
    models = as_list((fields(said.body("models")) or {}).get("data")) or ()
    owners = [text((fields(model) or {}).get("owned_by")) for model in models]
    fingerprint = text((fields(said.body("plain")) or {}).get("system_fingerprint"))
    if fingerprint == "fp_ollama":
        return "Ollama"
    return next((_OWNERS[owner] for owner in owners if owner in _OWNERS), "")


def remedy(name: str, engine: str) -> str:
    """What to do about a fault of this name; empty for no name."""
    if not name:
        return ""
    by_engine = _REMEDIES[name]
    return by_engine.get(engine) or by_engine[_ANY]
