// Package kernels tests the programs on the kernels of Debian, in virtual machines: what the kernel of the machine that
// runs the tests has, or lacks, makes no difference.
package kernels

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/guest"
	"github.com/tinkerbell/stack/test/e2e/kernel"
)

// Series is a kernel that the programs are tested on: the current one of a series. They are those for clouds, which
// differ from the others in drivers alone.
type Series struct {
	Name    string
	Arch    string // as Go calls it
	Package kernel.Package
	Default bool   // whether it is tested without being asked for
	Cases   string // that it runs, as go test's -run has them; empty: all
}

// modules are what the cases build networks of.
var modules = append(slices.Clone(guest.Modules),
	"8021q", "bonding", "ipvlan", "macvlan", "veth", "bridge", "dummy", "sch_netem", "nf_tables",
	"nft_masq", "nft_ct", "nft_chain_nat", "brd")

// All are the kernels, from the oldest on.
var All = []Series{
	{"5.10", "amd64", kernel.Package{
		Name: "linux-image-cloud-amd64", Release: "bullseye", Arch: "amd64",
		Modules: append(slices.Clone(modules), "nft_counter"),
	}, false, ""},
	{"6.1", "amd64", kernel.Package{
		Name: "linux-image-cloud-amd64", Release: "bookworm", Arch: "amd64", Modules: modules,
	}, true, ""},
	{"6.12", "amd64", kernel.Package{
		Name: "linux-image-6.12-cloud-amd64", Release: "bookworm", Arch: "amd64", Modules: modules,
	}, true, ""},
	// The programs' other architecture: that they start and relay.
	{"6.1-arm64", "arm64", kernel.Package{
		Name: "linux-image-cloud-arm64", Release: "bookworm", Arch: "arm64", Modules: modules,
	}, true, "TestTaggedParent|TestTrunk"},
}

// Find is the series of a name.
func Find(name string) (Series, error) {
	var names []string
	for _, s := range All {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Series{}, fmt.Errorf("failed to find kernel %q: there are %s", name, strings.Join(names, ", "))
}
