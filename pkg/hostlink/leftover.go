package hostlink

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// leftovers are the interfaces that the shell script before us made on the node, and left there when it failed
// half-way: name and kind.
var leftovers = map[string]string{"macvlan0": "macvlan", "ipvlan0": "ipvlan", "ipvlan0-wa": "ipvlan"}

func isLeftover(link Link) bool {
	kind, ok := leftovers[link.Name]
	return ok && link.Kind == kind
}

// Leftovers are the interfaces in the node's namespace which have both the name and the kind of those that the
// former relay's script made. Whoever asks for their removal vouches that they are nobody else's.
func (h *Host) Leftovers() ([]Link, error) {
	links, err := h.conn.links(h.nsid)
	if err != nil {
		return nil, explain(h.asked(err))
	}
	return slices.DeleteFunc(links, func(link Link) bool { return !isLeftover(link) }), nil
}

// RemoveLeftover removes one of [Host.Leftovers] from the node.
func (h *Host) RemoveLeftover(link Link) error {
	if !isLeftover(link) {
		return fmt.Errorf("failed to remove %s from the node: not a leftover", link.Name)
	}
	_, err := h.conn.do(deleteLink(h.nsid, link.Index), 0)
	if errno, _ := asErrno(err); err == nil || errno == unix.ENODEV {
		return nil
	}
	return explain(fmt.Errorf("failed to remove %s from the node: %w", link.Name, err))
}
