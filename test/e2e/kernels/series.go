// Package kernels tests the programs on the kernels of Debian, in virtual machines: what the kernel of the machine that
// runs the tests has, or lacks, makes no difference.
package kernels

import (
	"fmt"
	"slices"

	"github.com/tinkerbell/stack/test/e2e/guest"
	"github.com/tinkerbell/stack/test/e2e/kernel"
)

// Series is a kernel that the programs are tested on: the current one of a series. They are those for clouds, which differ
// from the others in drivers alone.
type Series struct {
	Name    string
	Arch    string // as Go calls it
	Package kernel.Package
}

// modules are what the cases build networks of.
var modules = append(slices.Clone(guest.Modules), "8021q", "bonding", "ipvlan", "macvlan", "veth", "bridge", "dummy", "sch_netem",
	"nf_tables", "nft_masq", "nft_ct", "nft_chain_nat")

// All are the kernels, from the oldest on.
var All = []Series{
	{"5.10", "amd64", kernel.Package{Name: "linux-image-cloud-amd64", Release: "bullseye", Arch: "amd64", Modules: modules}},
	{"6.1", "amd64", kernel.Package{Name: "linux-image-cloud-amd64", Release: "bookworm", Arch: "amd64", Modules: modules}},
	{"6.12", "amd64", kernel.Package{Name: "linux-image-6.12-cloud-amd64", Release: "bookworm", Arch: "amd64", Modules: modules}},
	{"6.1-arm64", "arm64", kernel.Package{Name: "linux-image-cloud-arm64", Release: "bookworm", Arch: "arm64", Modules: modules}},
}

// Find is the series of a name.
func Find(name string) (Series, error) {
	i := slices.IndexFunc(All, func(s Series) bool { return s.Name == name })
	if i < 0 {
		return Series{}, fmt.Errorf("failed to find kernel %q", name)
	}
	return All[i], nil
}
