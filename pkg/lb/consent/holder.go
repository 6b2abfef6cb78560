package consent

import (
	"slices"
	"strings"
	"time"
)

// Times are those of a lease.
type Times struct {
	// Lease is how long a candidate waits, and what it promises.
	Lease time.Duration
	// Patience is how long a node that is no member waits, since its consent is not asked for.
	Patience time.Duration
	// Limit is how long after the last request that the API has written consents are asked for: what they allow has ended
	// before the patience of those that are no members.
	Limit time.Duration
}

// Patience is the default of Times: longer than the API is away in most cases, and as long as nobody has the address
// where all members are gone for good at once and others have come.
const Patience = 15 * time.Minute

// Start is that of a holder's grant: the request that the API has written last, or the last challenge to which all
// members have consented.
func (t Times) Start(written, consented time.Duration) time.Duration {
	return max(written, min(consented, written+t.Limit))
}

// List is whom the holder asks for consent, as it stands in the lease.
type List struct {
	// Stamp tells lists apart: none has that of another one of the same lease.
	Stamp string
	// Nodes are names; none says that nobody is asked, and the lease ends without the API.
	Nodes []string
}

// ParseList reads what String has written.
func ParseList(text string) List {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return List{}
	}
	return List{Stamp: fields[0], Nodes: fields[1:]}
}

func (l List) String() string { return strings.Join(append([]string{l.Stamp}, l.Nodes...), " ") }

// Waits is how long a node waits for a lease with this list.
func (l List) Waits(t Times, node string) time.Duration {
	if len(l.Nodes) > 0 && !slices.Contains(l.Nodes, node) {
		return max(t.Lease, t.Patience)
	}
	return t.Lease
}

// Required are the nodes that have to consent: those of the list that is in the lease, and of one that this holder has
// sent and that may be there already.
func (l List) Required(sent List) []string {
	if len(l.Nodes) == 0 {
		return nil
	}
	all := slices.Concat(l.Nodes, sent.Nodes)
	slices.Sort(all)
	return slices.Compact(all)
}

// keptRounds is for how many challenges answers are heard.
const keptRounds = 8

// Rounds are the challenges of one holder, and who has answered them.
type Rounds struct{ rounds []round }

type round struct {
	nonce   Nonce
	start   time.Duration
	asks    bool
	answers map[string]map[ID]bool // by node
}

// Begin begins a round, which asks for consent, or only who is there. start is before its challenge is sent.
func (r *Rounds) Begin(nonce Nonce, start time.Duration, asks bool) {
	r.rounds = append(r.rounds, round{nonce, start, asks, map[string]map[ID]bool{}})
	if len(r.rounds) > keptRounds {
		r.rounds = slices.Delete(r.rounds, 0, 1)
	}
}

// Answer takes a node's answer to a challenge. It returns false where the challenge is not ours, or long ago, or asked
// for something else.
func (r *Rounds) Answer(nonce Nonce, node string, leases []ID, consents bool) bool {
	for _, round := range r.rounds {
		if round.nonce != nonce || round.asks != consents {
			continue
		}
		if round.answers[node] == nil {
			round.answers[node] = map[ID]bool{}
		}
		for _, id := range leases {
			round.answers[node][id] = true
		}
		return true
	}
	return false
}

// Start is that of the last round to which all members but this node have consented for a lease. A single member
// consents to itself.
func (r *Rounds) Start(lease ID, members []string, self string) (time.Duration, bool) {
	for _, round := range slices.Backward(r.rounds) {
		missing := func(node string) bool { return node != self && !round.answers[node][lease] }
		if round.asks && len(members) > 0 && !slices.ContainsFunc(members, missing) {
			return round.start, true
		}
	}
	return 0, false
}
