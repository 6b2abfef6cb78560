// Package datagram is the common part of the proxy's UDP routes: sockets that answer from the asked address, batches of
// datagrams in one system call, and a NAT of bounded sessions served by one epoll loop per worker.
//
// Everything here works on raw descriptors instead of [net.UDPConn], so that a packet costs no allocation, no
// lock and no goroutine. docs/design/decisions.md says why.
package datagram
