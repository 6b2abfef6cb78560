package main

// mostProcessors bounds processors: a relay with more sockets than that has no more traffic for it.
const mostProcessors = 8

// processors is how many threads may run Go code at once (GOMAXPROCS): one for each socket that packets are read from,
// which waits in the kernel while they come often (socket.Socket.Pump), and one for everything else.
func (s *settings) processors() int {
	sockets := 1 + len(s.heard())
	if s.has4() && s.Dhcpv6Enabled {
		sockets *= 2
	}
	return min(sockets+1, mostProcessors)
}
