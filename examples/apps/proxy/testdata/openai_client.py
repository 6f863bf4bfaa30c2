"""Calls a chat completion, and streams another, by OpenAI's package if it is installed.

Without it, a client over urllib does what that package does: the same headers, its two retries, the same reading of
x-should-retry, retry-after-ms and retry-after, and the same backoff without them.
"""
import email.utils, json, random, sys, time, urllib.error, urllib.request

base_url, model = sys.argv[1], sys.argv[2]
messages = [{"role": "user", "content": "hello"}]


class Plain:
    name = "urllib"

    def post(self, body, retries=2):
        for taken in range(retries + 1):
            request = urllib.request.Request(base_url + "/chat/completions", json.dumps(body).encode(), {
                "Authorization": "Bearer sk-test", "Content-Type": "application/json", "Accept": "application/json",
                "Accept-Encoding": "gzip, deflate", "User-Agent": "OpenAI/Python 2.0.0",
                "X-Stainless-Lang": "python", "X-Stainless-Retry-Count": str(taken),
            })
            try:
                return urllib.request.urlopen(request, timeout=600)
            except urllib.error.HTTPError as e:
                if taken == retries or not self.should_retry(e):
                    raise
                time.sleep(self.pause(e.headers, taken))

    @staticmethod
    def should_retry(e):
        said = e.headers.get("x-should-retry")
        return said == "true" if said in ("true", "false") else e.code in (408, 409, 429) or e.code >= 500

    @staticmethod
    def pause(headers, taken):
        after = None
        if ms := headers.get("retry-after-ms"):
            after = float(ms) / 1000
        elif text := headers.get("retry-after"):
            try:
                after = float(text)
            except ValueError:
                if at := email.utils.parsedate_tz(text):
                    after = email.utils.mktime_tz(at) - time.time()
        if after is not None and 0 < after <= 60:
            return after
        return min(0.5 * 2**taken, 8) * (1 - 0.25 * random.random())

    def complete(self):
        reply = json.load(self.post({"messages": messages, "model": model}))
        return reply["choices"][0]["message"]["content"], reply["usage"]["total_tokens"]

    def stream(self):
        reply = self.post({"messages": messages, "model": model, "stream": True, "stream_options": {"include_usage": True}})
        for line in reply:
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                chunk = json.loads(line[6:])
                yield chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None, chunk.get("usage")


def packaged():
    import openai

    class Packaged:
        name = "openai " + openai.__version__
        client = openai.OpenAI(base_url=base_url, api_key="sk-test")

        def complete(self):
            reply = self.client.chat.completions.create(model=model, messages=messages)
            return reply.choices[0].message.content, reply.usage.total_tokens

        def stream(self):
            for chunk in self.client.chat.completions.create(model=model, messages=messages, stream=True,
                                                             stream_options={"include_usage": True}):
                yield chunk.choices[0].delta.content if chunk.choices else None, chunk.usage and chunk.usage.model_dump()

    return Packaged()


try:
    client = packaged()
except ImportError:
    client = Plain()

text, tokens = client.complete()
streamed, usage, first, began = "", None, None, time.monotonic()
for piece, said in client.stream():
    if piece:
        first = first or time.monotonic() - began
        streamed += piece
    usage = said or usage
print(json.dumps({"client": client.name, "text": text, "tokens": tokens, "streamed": streamed, "stream_tokens": usage["total_tokens"],
                  "first": first, "whole": time.monotonic() - began}))
