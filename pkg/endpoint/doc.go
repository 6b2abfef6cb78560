// Package endpoint knows where a route's backend is and whether it answers.
//
// A [Pool] belongs to one route. Its sources (an address, a DNS name, a Kubernetes Service) say where the endpoints
// are; its fronts take one with [Pool.Acquire] (streams, which report how it went) or [Pool.Pick] (datagrams), and
// its health, passive and active, decides which are offered.
package endpoint
