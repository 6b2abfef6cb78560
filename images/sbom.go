package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// writeSBOM writes <program>.spdx.json: the binaries of every platform and the modules that they contain.
func (o options) writeSBOM(program string, builds []build) error {
	document := &spdx.Document{
		SPDXVersion:    spdx.Version,
		DataLicense:    spdx.DataLicense,
		SPDXIdentifier: "DOCUMENT",
		DocumentName:   program + "-" + o.version,
		CreationInfo: &spdx.CreationInfo{
			Creators: []common.Creator{{Creator: "stack-images", CreatorType: "Tool"}},
			Created:  o.created.Format(time.RFC3339),
		},
	}
	seen := make(map[common.ElementID]bool)
	identity := sha256.New()
	for _, b := range builds {
		content, err := os.ReadFile(b.binary)
		if err != nil {
			return err
		}
		info, err := buildinfo.Read(bytes.NewReader(content))
		if err != nil {
			return fmt.Errorf("failed to read modules of %s for %s: %w", program, b.platform, err)
		}
		sum := sha256.Sum256(content)
		identity.Write(sum[:])
		binary := o.binaryPackage(program, b.platform, hex.EncodeToString(sum[:]))
		document.Packages = append(document.Packages, binary)
		relate(document, "DOCUMENT", common.TypeRelationshipDescribe, binary.PackageSPDXIdentifier)
		for _, module := range modules(info) {
			if !seen[module.PackageSPDXIdentifier] {
				seen[module.PackageSPDXIdentifier] = true
				document.Packages = append(document.Packages, module)
			}
			relate(document, binary.PackageSPDXIdentifier, common.TypeRelationshipContains, module.PackageSPDXIdentifier)
		}
	}
	document.DocumentNamespace = "https://github.com/tinkerbell/stack/sbom/" + program + "/" +
		hex.EncodeToString(identity.Sum(nil))
	var out bytes.Buffer
	if err := spdxjson.Write(document, &out, spdxjson.Indent("  "), spdxjson.EscapeHTML(false)); err != nil {
		return fmt.Errorf("failed to write SPDX document of %s: %w", program, err)
	}
	return os.WriteFile(o.path(program+".spdx.json"), out.Bytes(), 0o644)
}

func (o options) binaryPackage(program, platform, sum string) *spdx.Package {
	p := component(program+"-"+platform, program, o.version)
	p.PackageLicenseDeclared = "Apache-2.0"
	p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
	p.PrimaryPackagePurpose = "APPLICATION"
	return p
}

// modules are those that the linker took, the standard library among them, by name.
func modules(info *debug.BuildInfo) []*spdx.Package {
	version := strings.TrimPrefix(info.GoVersion, "go")
	packages := []*spdx.Package{purl(component("stdlib-"+version, "stdlib", version), "pkg:golang/stdlib@"+version)}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		packages = append(packages, purl(component(module.Path+"-"+module.Version, module.Path, module.Version),
			"pkg:golang/"+module.Path+"@"+module.Version))
	}
	slices.SortFunc(packages, func(a, b *spdx.Package) int { return strings.Compare(a.PackageName, b.PackageName) })
	return packages
}

// notID are the characters that an SPDX identifier may not have.
var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func component(id, name, version string) *spdx.Package {
	return &spdx.Package{
		PackageName:             name,
		PackageVersion:          version,
		PackageSPDXIdentifier:   common.ElementID("Package-" + notID.ReplaceAllString(id, "-")),
		PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared:  "NOASSERTION",
		PackageCopyrightText:    "NOASSERTION",
	}
}

func purl(p *spdx.Package, locator string) *spdx.Package {
	p.PackageExternalReferences = []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator,
	}}
	return p
}

func relate(document *spdx.Document, from common.ElementID, how string, to common.ElementID) {
	document.Relationships = append(document.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to)), Relationship: how,
	})
}
