package route

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/edge"
)

// Edge is what stands before the route.
func (r Route) Edge() edge.Config {
	return edge.Config{
		Hosts: r.Hosts, TLS: r.TLS, JWT: r.JWT, Limit: r.Limits.Requests, Rewrite: r.Rewrite,
		Backend: r.BackendTLS,
	}
}

// Web is whether the route speaks HTTP.
func (r Route) Web() bool { return slices.Contains([]Protocol{HTTP, GRPC, Files}, r.Protocol) }

// checkEdge finds what is wrong with what stands before the route. The faults name the field they are in.
func (r Route) checkEdge(at func(field, format string, args ...any)) {
	c := r.Edge()
	err := c.Validate()
	if err == nil {
		return
	}
	faults := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	for _, fault := range faults {
		field, text, _ := strings.Cut(fault.Error(), ": ")
		if rest, ok := strings.CutPrefix(field, "limit."); ok {
			field = "limits.requests." + rest
		}
		at(field, "%s", text)
	}
}

// CheckFiles reads what the routes name of the file system, once: certificates, keys, key sets, directories. Parse does
// not, since they may come later, and are elsewhere where a file is checked before it is used.
func (t Table) CheckFiles() error {
	var faults []error
	for _, r := range t.Routes {
		fault := func(err error) { faults = append(faults, fmt.Errorf("route %s: %w", r.Name, err)) }
		c := r.Edge()
		if joined, ok := c.CheckFiles().(interface{ Unwrap() []error }); ok {
			for _, each := range joined.Unwrap() {
				fault(each)
			}
		}
		if r.Protocol != Files {
			continue
		}
		if info, err := os.Stat(r.Files.Directory); err != nil {
			fault(fmt.Errorf("files.directory: failed to find files: %w", err))
		} else if !info.IsDir() {
			fault(fmt.Errorf("files.directory: %s is no directory", r.Files.Directory))
		}
	}
	return errors.Join(faults...)
}
