package route

// removed are the fields that routes files once had, with what to do about each.
var removed = map[string]string{
	"routes[].backendConnections":         ownConnections,
	"routes[].balance":                    "leave it out: endpoints are chosen in turn, for datagrams by client",
	"routes[].files.pace":                 "leave it out: limits.rate gives each client the same share",
	"routes[].files.precompressed":        "leave it out, and have clients ask for the compressed file by its name",
	"routes[].health":                     ejected,
	"routes[].jwt.leeway":                 "leave it out: clocks may differ by 30 s",
	"routes[].jwt.realm":                  "leave it out: the realm is stack",
	"routes[].jwt.refreshEvery":           "leave it out: keys are fetched every 5 minutes, and for an unknown one",
	"routes[].jwt.stripToken":             "leave it out: the backend gets the token",
	"routes[].jwt.types":                  "leave it out: typ is JWT, at+jwt or none",
	"routes[].limits.header":              "leave it out: a header has 64 KiB",
	"routes[].limits.machines":            noQueue,
	"routes[].limits.queue":               noQueue,
	"routes[].limits.requests.maxClients": "leave it out: the table has 65536 clients",
	"routes[].limits.retryAgents":         noQueue,
	"routes[].limits.sessions":            "leave it out: there may be 4096 sessions",
	"routes[].limits.sessionsPerClient":   "leave it out: a client may have 64 sessions",
	"routes[].syslog":                     rewritten,
	"routes[].tcp":                        "leave it out: Tink Server and SSH are known not to read such headers",
	"routes[].tftp.allowWrite":            "leave it out: write requests are refused",
	"routes[].tls.alpn":                   "leave it out: clients are offered HTTP/2 and HTTP/1.1",
	"routes[].timeouts.dial":              "leave it out: a connection to an endpoint has 2 s",
	"routes[].timeouts.drain":             "leave it out: STACK_PROXY_DRAIN_TIMEOUT holds for all routes",
	"routes[].timeouts.header":            "leave it out: a request's header has 10 s",
	"routes[].timeouts.keepalive":         kernel,
	"routes[].timeouts.response":          "leave it out: an endpoint has 60 s for the header of its answer",
	"routes[].timeouts.stall":             "leave it out: 60 s without a byte end a body",
	"routes[].timeouts.user":              kernel,
	"routes[].workers":                    "leave it out: one socket carries some 50,000 blocks a second",
}

const (
	ownConnections = "leave it out: clients do not share connections to endpoints, or one may get another's answer"
	ejected        = "leave it out: three failures in a row eject an endpoint, for 5 s at first; no other checks are made"
	noQueue        = "leave it out: machines do not wait to be served, and limits.rate gives each the same share"
	rewritten      = "leave it out: a line names its machine; for datagrams as they came make it protocol: udp"
	kernel         = "leave it out: a peer that is gone is noticed after a minute; timeouts.idle ends what is silent"
)
