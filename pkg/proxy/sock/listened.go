package sock

import (
	"bytes"
	"os"
	"strconv"
)

// listeningState is the state of a listening socket in /proc/net/tcp (TCP_LISTEN).
const listeningState = "0A"

// Listened reports whether a socket of this network namespace listens on a port, at any address. A port may be taken
// without one, by a connection from it or by the rest of one (TIME-WAIT); then it becomes free by itself.
func Listened(port uint16) bool {
	for _, path := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // without IPv6 there is no such file; other errors count as not listening
		}
		for line := range bytes.Lines(text) {
			// "sl local_address rem_address st": 0: 0100007F:1F90 00000000:0000 0A
			fields := bytes.Fields(line)
			if len(fields) < 4 || string(fields[3]) != listeningState {
				continue
			}
			_, text, _ := bytes.Cut(fields[1], []byte(":"))
			if n, err := strconv.ParseUint(string(text), 16, 16); err == nil && uint16(n) == port {
				return true
			}
		}
	}
	return false
}
