package headers

import "time"

// A Preset is a [Dialect] by name. It is a constant: [Preset.Dialect] returns a copy that can be changed.
type Preset string

const (
	Generic Preset = "generic" // what Parse reads
	Auto    Preset = "auto"    // for a Reader: the preset that claims the request's host

	AmazonSP    Preset = "amazon-sp-api"
	Anthropic   Preset = "anthropic"
	Auth0       Preset = "auth0"
	AWS         Preset = "aws"
	AzureARM    Preset = "azure-arm"
	AzureOpenAI Preset = "azure-openai"
	Bedrock     Preset = "bedrock"
	Binance     Preset = "binance"
	Cerebras    Preset = "cerebras"
	Databricks  Preset = "databricks"
	Discord     Preset = "discord"
	Docker      Preset = "docker"
	GitHub      Preset = "github"
	GitLab      Preset = "gitlab"
	Google      Preset = "google"
	Groq        Preset = "groq"
	HubSpot     Preset = "hubspot"
	Jira        Preset = "jira"
	Linear      Preset = "linear"
	Meta        Preset = "meta"
	Mistral     Preset = "mistral"
	Okta        Preset = "okta"
	OpenAI      Preset = "openai"
	Problem     Preset = "problem+json" // problem documents (RFC 9457) of the draft's types, from any host
	Riot        Preset = "riot"
	Salesforce  Preset = "salesforce"
	Sentry      Preset = "sentry"
	Shopify     Preset = "shopify"
	Slack       Preset = "slack"
	Stripe      Preset = "stripe"
	Twilio      Preset = "twilio"
	Yelp        Preset = "yelp"
	Zendesk     Preset = "zendesk"
)

// Presets returns the presets of single APIs.
func Presets() []Preset {
	return []Preset{
		AmazonSP, Anthropic, Auth0, AWS, AzureARM, AzureOpenAI, Bedrock, Binance, Cerebras, Databricks, Discord, Docker, GitHub, GitLab,
		Google, Groq, HubSpot, Jira, Linear, Meta, Mistral, Okta, OpenAI, Problem, Riot, Salesforce, Sentry, Shopify, Slack, Stripe,
		Twilio, Yelp, Zendesk,
	}
}

// Dialect returns a copy of the preset's dialect. It returns the zero Dialect for Generic, Auto and unknown names.
func (p Preset) Dialect() Dialect {
	for _, family := range [...]func(Preset) Dialect{cloudPreset, codePreset, modelPreset, businessPreset, otherPreset} {
		if d := family(p); d.Hosts != nil || d.Members != nil || d.Rules != nil {
			d.Name = string(p)
			return d
		}
	}
	return Dialect{}
}

const day = 24 * time.Hour

func one(name, value string) Match { return Match{name, []string{value}} }

func cloudPreset(p Preset) Dialect {
	switch p {
	case AWS:
		return Dialect{Hosts: []string{"*.amazonaws.com", "*.amazonaws.com.cn", "*.api.aws"}, Rules: awsRules()}
	case AmazonSP:
		return Dialect{
			Hosts: []string{
				"sellingpartnerapi-na.amazon.com", "sellingpartnerapi-eu.amazon.com", "sellingpartnerapi-fe.amazon.com",
			},
			Fields: []Field{{Name: "x-amzn-RateLimit-Limit", Role: RoleRate}},
		}
	case Google:
		return Dialect{
			Hosts:   []string{"*.googleapis.com"},
			Parts:   []Part{{After: "models"}}, // of Gemini: https://ai.google.dev/gemini-api/docs/rate-limits
			Members: []Field{{Name: "retryDelay", Role: RoleRetryAfter}},
			Rules: []Rule{
				{Statuses: []int{403, 429}, Final: true, Reason: "limit 0", Body: []Match{ // not in this plan, or without billing
					one("quotaValue", "0"), one("quota_limit_value", "0"), one("message", "*, limit: 0*"),
				}},
				{Statuses: []int{403}, Body: []Match{
					one("status", "RESOURCE_EXHAUSTED"),
					{"reason", []string{
						"rateLimitExceeded", "userRateLimitExceeded", "dailyLimitExceeded", "quotaExceeded", "RATE_LIMIT_EXCEEDED",
					}},
				}},
			},
		}
	case AzureARM: // https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
		return Dialect{
			Hosts:  []string{"management.azure.com", "management.usgovcloudapi.net", "management.chinacloudapi.cn"},
			Fields: []Field{{Name: "x-ms-ratelimit-remaining-resource", Form: NameCount, Role: RoleRemaining}},
		}
	case Docker:
		return Dialect{Hosts: []string{"registry-1.docker.io", "auth.docker.io", "hub.docker.com"}, Scope: "account or address"}
	}
	return Dialect{}
}

// awsRules are the codes by which services of AWS throttle, in a header, JSON or XML, on 400, 403, 503 and others.
func awsRules() []Rule {
	codes := []string{
		"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
		"TooManyRequestsException", "ProvisionedThroughputExceededException", "RequestLimitExceeded",
		"BandwidthLimitExceeded", "EC2ThrottledException", "SlowDown", "PriorRequestNotComplete",
	}
	for _, code := range codes {
		codes = append(codes, "*#"+code, code+":*") // after a namespace, before a URL
	}
	statuses := []int{400, 403, 500, 502, 503}
	return []Rule{
		{Statuses: statuses, Header: Match{"X-Amzn-Errortype", codes}},
		{Statuses: statuses, Body: []Match{{"__type", codes}, {"code", codes}, {"Code", codes}}},
	}
}

func codePreset(p Preset) Dialect {
	switch p {
	case GitHub:
		// https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api: without Retry-After and with quota left
		// it is a secondary limit, and one waits at least a minute.
		secondary := []Match{
			{"message", []string{"*secondary rate limit*", "*abuse detection*"}}, one("documentation_url", "*secondary-rate-limits*"),
		}
		inAnswer := append(secondary, one("type", "RATE_LIMITED")) // of GraphQL
		return Dialect{
			Reset:   EpochSeconds,
			Hosts:   []string{"api.github.com", "uploads.github.com", "*.ghe.com"},
			MinWait: time.Minute,
			Rules: []Rule{
				{Statuses: []int{403, 429}, Body: secondary, Reason: "secondary rate limit"},
				{Statuses: []int{200}, Header: one("X-RateLimit-Resource", "graphql"), Body: inAnswer},
				{Statuses: []int{200}, Header: one("X-RateLimit-Remaining", "0"), Body: inAnswer},
			},
		}
	case GitLab:
		return Dialect{Hosts: []string{"gitlab.com"}}
	case Jira:
		return Dialect{Hosts: []string{"*.atlassian.net", "api.atlassian.com"}}
	case Meta:
		return meta()
	case Linear:
		return Dialect{
			Hosts: []string{"api.linear.app"},
			Rules: []Rule{{Statuses: []int{400}, Body: []Match{one("code", "RATELIMITED")}}},
		}
	case Sentry:
		return Dialect{Hosts: []string{"sentry.io", "*.sentry.io"}}
	}
	return Dialect{}
}

func modelPreset(p Preset) Dialect {
	reason := []Field{{Name: "code", Role: RoleReason}, {Name: "message", Role: RoleRetryAfter, Form: Sentence}}
	switch p {
	case OpenAI:
		unpaid := []string{"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
		return Dialect{
			Hosts:   []string{"api.openai.com"},
			Parts:   []Part{{Member: "model"}}, // https://platform.openai.com/docs/guides/rate-limits
			Members: reason,
			Rules:   []Rule{{Statuses: []int{400, 429}, Body: []Match{{"code", unpaid}, {"type", unpaid}}, Final: true, Reason: "billing"}},
		}
	case AzureOpenAI:
		return Dialect{
			Hosts:   []string{"*.openai.azure.com", "*.cognitiveservices.azure.com"},
			Parts:   []Part{{After: "deployments"}, {Member: "model"}}, // which is the deployment, without one in the path
			Members: reason,
		}
	case Anthropic:
		return Dialect{
			Hosts:   []string{"api.anthropic.com"},
			Parts:   []Part{{Member: "model"}}, // https://docs.anthropic.com/en/api/rate-limits
			Fields:  []Field{{Name: "anthropic-priority-*", Form: Family, Bucket: "priority", Advisory: true}},
			Members: []Field{{Name: "error_code", Role: RoleReason}},
			Rules: []Rule{ // of an organization, a workspace, and prepaid credit
				{Statuses: []int{429}, Body: []Match{one("error_code", "enforced_spend_limit_reached")}, Final: true},
				{Statuses: []int{402}, Body: []Match{one("type", "billing_error")}, Final: true, Reason: "billing_error"},
				{Statuses: []int{400}, Body: []Match{{"message", []string{
					"You have reached your specified *", "Your credit balance is too low*",
				}}}, Final: true, Reason: "billing"},
				// https://docs.anthropic.com/en/api/streaming#error-events: what is a 429 or a 529 without a stream
				{Event: "error", Body: []Match{one("type", "overloaded_error")}, Scope: "host"},
				{Event: "error", Body: []Match{one("type", "rate_limit_error")}},
			},
		}
	case Bedrock: // https://docs.aws.amazon.com/bedrock/latest/userguide/quotas.html
		return Dialect{
			Hosts: []string{"bedrock-runtime.*.amazonaws.com", "bedrock-runtime-fips.*.amazonaws.com", "bedrock-mantle.*.api.aws"},
			Parts: []Part{{After: "model"}, {Member: "model"}}, // in the body of the APIs that are compatible with OpenAI's
			Rules: awsRules(),
		}
	case Databricks: // https://docs.databricks.com/aws/machine-learning/foundation-model-apis/limits
		return Dialect{
			Hosts:   []string{"*.cloud.databricks.com", "*.azuredatabricks.net", "*.gcp.databricks.com"},
			Parts:   []Part{{After: "serving-endpoints"}, {Member: "model"}}, // which is the endpoint for clients of OpenAI
			Members: []Field{{Name: "error_code", Role: RoleReason}},
		}
	case Groq: // https://console.groq.com/docs/rate-limits
		return Dialect{Hosts: []string{"api.groq.com"}, Parts: []Part{{Member: "model"}}, Members: reason}
	case Cerebras: // https://inference-docs.cerebras.ai/support/rate-limits
		return Dialect{Hosts: []string{"api.cerebras.ai"}, Parts: []Part{{Member: "model"}}, Members: reason}
	case Mistral: // https://docs.mistral.ai/deployment/ai-studio/tier: each model has limits of its own
		return Dialect{
			Hosts:   []string{"api.mistral.ai", "codestral.mistral.ai"},
			Parts:   []Part{{Member: "model"}},
			Members: []Field{{Name: "type", Role: RoleReason}},
		}
	}
	return Dialect{}
}

func businessPreset(p Preset) Dialect {
	switch p {
	case HubSpot:
		return hubSpot()
	case Salesforce:
		return Dialect{
			Hosts:  []string{"*.salesforce.com", "*.force.com"},
			Fields: []Field{{Name: "Sforce-Limit-Info", Form: UsedOf}},
			Rules:  []Rule{{Statuses: []int{403}, Body: []Match{one("errorCode", "REQUEST_LIMIT_EXCEEDED")}}},
		}
	case Shopify:
		return shopify()
	case Slack:
		return Dialect{Hosts: []string{"slack.com", "*.slack.com"}, Parts: []Part{{After: "api"}}, Scope: "method"}
	case Stripe:
		return Dialect{
			Hosts: []string{"api.stripe.com", "files.stripe.com"},
			Rules: []Rule{{Statuses: []int{429}, Header: one("Stripe-Rate-Limited-Reason", "*-concurrency"), Concurrency: true}},
		}
	case Twilio:
		return Dialect{
			Hosts:  []string{"*.twilio.com"},
			Fields: []Field{{Name: "Twilio-Concurrent-Requests", Role: RoleInFlight, Bucket: "concurrency"}},
			Rules:  []Rule{{Statuses: []int{429}, Header: Match{Name: "Twilio-Concurrent-Requests"}, Concurrency: true}},
		}
	case Zendesk:
		return Dialect{
			Hosts:  []string{"*.zendesk.com"},
			Fields: []Field{{Name: "Zendesk-RateLimit-*", Form: Pairs}},
		}
	}
	return Dialect{}
}

func hubSpot() Dialect {
	header := func(name string, role Role, bucket string, window time.Duration) Field {
		return Field{Name: "X-HubSpot-RateLimit-" + name, Role: role, Bucket: bucket, Window: window}
	}
	interval := header("Interval-Milliseconds", RoleWindow, "interval", 0)
	interval.Unit = Milliseconds
	limit := func(policy string, wait time.Duration) Rule {
		return Rule{Statuses: []int{429}, Body: []Match{one("policyName", policy)}, Wait: wait}
	}
	return Dialect{
		Hosts: []string{"api.hubapi.com", "api.hubspot.com", "api-eu1.hubapi.com"},
		Fields: []Field{
			header("Daily", RoleLimit, "daily", day), header("Daily-Remaining", RoleRemaining, "daily", day),
			header("Secondly", RoleLimit, "secondly", time.Second), header("Secondly-Remaining", RoleRemaining, "secondly", time.Second),
			header("Max", RoleLimit, "interval", 0), header("Remaining", RoleRemaining, "interval", 0), interval,
		},
		Members: []Field{{Name: "policyName", Role: RoleReason}},
		Rules:   []Rule{limit("*TEN_SECONDLY*", 10*time.Second), limit("*SECONDLY*", time.Second)},
	}
}

func shopify() Dialect {
	member := func(name string, role Role) Field { return Field{Name: name, Role: role, Bucket: "graphql"} }
	return Dialect{
		Hosts:  []string{"*.myshopify.com"},
		Fields: []Field{{Name: "X-Shopify-Shop-Api-Call-Limit", Form: UsedOf, Bucket: "shop"}},
		Members: []Field{
			member("maximumAvailable", RoleLimit), member("currentlyAvailable", RoleRemaining), member("restoreRate", RoleRate),
			member("actualQueryCost", RoleCost), member("requestedQueryCost", RoleCost), // where it was refused there is no actual one
		},
		Rules: []Rule{{Statuses: []int{200}, Body: []Match{one("code", "THROTTLED")}}},
	}
}

// meta is the Graph API: https://developers.facebook.com/docs/graph-api/overview/rate-limiting. Headers report per cents that
// were used, and errors have the status 400.
func meta() Dialect {
	percent := func(name string) Field { return Field{Name: name, Role: RolePercent} }
	usage := func(name, bucket string) Field { return Field{Name: name, Form: JSON, Bucket: bucket} }
	return Dialect{
		Hosts: []string{"graph.facebook.com", "graph.instagram.com", "graph.threads.net", "graph.oculus.com"},
		Fields: []Field{
			usage("X-App-Usage", "app"), usage("X-Page-Usage", "page"), usage("X-Business-Use-Case-Usage", "business"),
			usage("X-Ad-Account-Usage", "ad-account"), usage("X-FB-Ads-Insights-Throttle", "ads-insights"),
		},
		Members: []Field{
			percent("call_count"), percent("total_time"), percent("total_cputime"), percent("acc_id_util_pct"), percent("app_id_util_pct"),
			{Name: "estimated_time_to_regain_access", Role: RoleResetAfter, Unit: Minutes},
			{Name: "reset_time_duration", Role: RoleResetAfter, Unit: Seconds},
		},
		Rules: []Rule{{Statuses: []int{400, 403}, Body: []Match{{"code", []string{
			"4", "17", "32", "613", "80000", "80001", "80002", "80003", "80004", "80005", "80006", "80008", "80009", "80014",
		}}}}},
	}
}

func otherPreset(p Preset) Dialect {
	switch p {
	case Auth0:
		return Dialect{
			Hosts: []string{"*.auth0.com"},
			Fields: []Field{
				{Name: "Auth0-Client-Quota-Limit", Form: Pairs, Bucket: "client"},
				{Name: "Auth0-Organization-Quota-Limit", Form: Pairs, Bucket: "organization"},
			},
		}
	case Binance:
		used := func(name, bucket string, window time.Duration) Field {
			return Field{Name: name, Role: RoleUsed, Bucket: bucket, Window: window}
		}
		return Dialect{
			Hosts: []string{"api.binance.com", "*.binance.com"},
			Fields: []Field{
				used("X-Mbx-Used-Weight-1m", "weight", time.Minute),
				used("X-Mbx-Order-Count-10s", "orders", 10*time.Second), used("X-Mbx-Order-Count-1d", "orders-day", day),
			},
			Rules: []Rule{{Statuses: []int{418}}}, /* banned for not heeding 429 */
		}
	case Discord:
		return Dialect{
			Hosts:   []string{"discord.com", "*.discord.com", "discordapp.com"},
			Parts:   []Part{{After: "channels"}, {After: "guilds"}, {After: "webhooks"}}, // the major parameters
			Members: []Field{{Name: "retry_after", Role: RoleRetryAfter}},
			Rules:   []Rule{{Statuses: []int{429}, Header: one("X-RateLimit-Global", "true"), Scope: "global"}},
		}
	case Okta:
		return Dialect{Hosts: []string{"*.okta.com", "*.oktapreview.com", "*.okta-emea.com"}, ZeroIsConcurrency: true}
	case Problem:
		const types = "https://iana.org/assignments/http-problem-types#"
		return Dialect{Rules: []Rule{{Header: one("Content-Type", "application/problem+*"), Body: []Match{
			{"type", []string{types + "quota-exceeded", types + "temporary-reduced-capacity", types + "abnormal-usage-detected"}},
		}}}}
	case Riot:
		riot := func(name, bucket string, role Role) Field {
			return Field{Name: name, Form: PerWindow, Bucket: bucket, Role: role}
		}
		return Dialect{
			Hosts: []string{"*.api.riotgames.com"},
			Fields: []Field{
				riot("X-App-Rate-Limit", "app", RoleLimit), riot("X-App-Rate-Limit-Count", "app", RoleUsed),
				riot("X-Method-Rate-Limit", "method", RoleLimit), riot("X-Method-Rate-Limit-Count", "method", RoleUsed),
				{Name: "X-Rate-Limit-Type", Role: RoleScope},
			},
		}
	case Yelp:
		return Dialect{
			Hosts: []string{"api.yelp.com"},
			Fields: []Field{
				{Name: "RateLimit-DailyLimit", Role: RoleLimit, Bucket: "daily", Window: day},
				{Name: "RateLimit-Remaining", Role: RoleRemaining, Bucket: "daily"},
				{Name: "RateLimit-ResetTime", Role: RoleReset, Bucket: "daily"},
			},
		}
	}
	return Dialect{}
}
