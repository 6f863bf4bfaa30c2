vcl 4.1;
import std;
import vsthrottle;

backend default { .host = "{{.OriginHost}}"; .port = "{{.OriginPort}}"; }

sub vcl_recv {
	if (req.url == "/ready") { return (synth(200, "{{.Token}}")); }
	if (vsthrottle.is_denied(req.url, {{.N}}, {{.Seconds}}s)) { return (synth(429, "Too Many Requests")); }
	return (pass);
}

sub vcl_synth {
	if (resp.status == 429) { set resp.http.Retry-After = "1"; }
	set resp.body = resp.reason;
	return (deliver);
}
