package route

// removed are the fields that routes files once had, with what to do about each.
var removed = map[string]string{
	"routes[].backendConnections":  ownConnections,
	"routes[].balance":             "leave it out: endpoints are chosen in turn, for datagrams by the client's address",
	"routes[].files.precompressed": "leave it out, and have clients ask for the compressed file by its name",
	"routes[].health.passive":      ejected,
	"routes[].timeouts.keepalive":  kernel,
	"routes[].timeouts.user":       kernel,
	"routes[].limits.machines":     noQueue,
	"routes[].limits.queue":        noQueue,
	"routes[].limits.retryAgents":  noQueue,
}

const (
	ownConnections = "leave it out: clients do not share connections to endpoints, or one may get another's answer"
	ejected        = "leave it out: three failures in a row eject an endpoint, for 5 s at first; health.active asks it"
	noQueue        = "leave it out: machines do not wait to be served, and limits.rate gives each the same share"
	kernel         = "leave it out: a peer that is gone is noticed after a minute; timeouts.idle ends what is silent"
)
