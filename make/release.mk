# What a release is made of, and its rehearsal. Included by the Makefile. docs/release.md says what comes out.
REGISTRY     ?=
# Where releases are published: the one line to change for somebody else who publishes them first.
RELEASES     := ghcr.io/tinkerbell
RELEASE_DIR  := $(BUILD)/release
RELEASE      := $(BIN)/release
RELEASE_SOURCE := https://github.com/tinkerbell/stack
# Helm as it is there, or built.
HELM         ?= $(or $(shell command -v helm 2>/dev/null),$(TOOLS)/helm)
# The key to sign with; empty: keyless, by the identity of the workflow that runs it.
COSIGN_KEY   ?=
export COSIGN_KEY
# The chart as it is packaged for this commit, or for VERSION, a release's tag.
CHART_OF_COMMIT = -from $(CHART) -version '$(VERSION)' -commit '$(COMMIT)' -count "$$(git rev-list --count HEAD)" \
	-epoch "$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}"
# The names of programs and platforms in the release's files.
RELEASE_PLATFORMS := $(subst $(comma),$(space),$(IMAGE_PLATFORMS))

.PHONY: publish
publish: release-images release-chart ## build images and chart and push them: REGISTRY=registry.example/path

.PHONY: registry release-login release-publish
registry: ## print the registry of releases
	@echo $(RELEASES)
release-login: ## log in there as REGISTRY_USER with REGISTRY_PASSWORD, both of the environment
	@printenv REGISTRY_PASSWORD | docker login --username "$$REGISTRY_USER" --password-stdin $(firstword $(subst /,$(space),$(RELEASES)))
release-publish: ## publish there
	@$(MAKE) --no-print-directory publish REGISTRY='$(RELEASES)'

.PHONY: release-registry
release-registry:
	@test -n '$(REGISTRY)' || { echo "no REGISTRY: set one that you may push to, such as REGISTRY=registry.example/path" >&2; exit 2; }

.PHONY: release-tool
release-tool:
	@go build -C tools/release -o $(RELEASE) .

.PHONY: release-images
release-images: release-registry release-tool ## push the images of both platforms, by digest
	@rm -rf $(BUILD)/images && mkdir -p $(RELEASE_DIR)
	@$(MAKE) --no-print-directory images IMAGE_REPOSITORY='$(REGISTRY)/stack'
	$(RELEASE) images -from $(BUILD)/images -repository '$(REGISTRY)/stack' -tag '$(VERSION)' -list $(RELEASE_DIR)/images.json

.PHONY: release-chart
release-chart: release-registry release-tool $(filter $(TOOLS)/%,$(HELM)) ## push the chart that names the pushed images
	@rm -rf $(RELEASE_DIR)/charts && mkdir -p $(RELEASE_DIR)/charts
	$(RELEASE) chart $(CHART_OF_COMMIT) -to $(RELEASE_DIR)/charts/stack -list $(RELEASE_DIR)/images.json
	$(HELM) push $(RELEASE_DIR)/charts/stack-*.tgz 'oci://$(REGISTRY)/charts' >$(RELEASE_DIR)/chart.txt 2>&1 || \
		{ cat $(RELEASE_DIR)/chart.txt; exit 1; }
	@cat $(RELEASE_DIR)/chart.txt

# What is signed, and what is said of it.
$(RELEASE_DIR)/artifacts.txt: $(RELEASE_DIR)/images.json $(RELEASE_DIR)/chart.txt | release-tool
	$(RELEASE) artifacts -list $(RELEASE_DIR)/images.json -chart $(RELEASE_DIR)/chart.txt >$@.new && mv $@.new $@
.PHONY: release-provenance
release-provenance: release-tool
	$(RELEASE) provenance -source $(RELEASE_SOURCE) -revision '$(COMMIT)' -version '$(VERSION)' \
		-platforms '$(IMAGE_PLATFORMS)' \
		-builder '$(if $(GITHUB_WORKFLOW_REF),https://github.com/$(GITHUB_WORKFLOW_REF),local)' \
		-invocation '$(if $(GITHUB_RUN_ID),$(RELEASE_SOURCE)/actions/runs/$(GITHUB_RUN_ID))' \
		>$(RELEASE_DIR)/provenance.json

.PHONY: release-sign
release-sign: release-provenance $(RELEASE_DIR)/artifacts.txt $(TOOLS)/cosign ## sign images and chart, attest SBOMs and provenance
	@COSIGN=$(TOOLS)/cosign scripts/sign sign $(RELEASE_DIR)

.PHONY: release-verify
release-verify: $(RELEASE_DIR)/artifacts.txt $(TOOLS)/cosign ## verify what release-sign signed
	@COSIGN=$(TOOLS)/cosign scripts/sign verify $(RELEASE_DIR)

.PHONY: release-binaries
release-binaries: ## build the programs for both platforms into build/release/bin, with checksums
	@rm -rf $(RELEASE_DIR)/bin && mkdir -p $(RELEASE_DIR)/bin
	@set -e; for platform in $(RELEASE_PLATFORMS); do for program in $(IMAGE_PROGRAMS); do \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -trimpath -ldflags '$(LDFLAGS)' \
			-o $(RELEASE_DIR)/bin/$$program-$${platform%/*}-$${platform#*/} ./cmd/$$program; \
	done; done
	@$(release-sums)
# Of every file that is published, so that "sha256sum -c" is content with the downloads.
release-sums = cd $(RELEASE_DIR)/bin && rm -f SHA256SUMS && LC_ALL=C && sha256sum * >../SHA256SUMS && mv ../SHA256SUMS . && cat SHA256SUMS

# What is known of the modules' vulnerabilities, and which of them the programs do not reach.
.PHONY: release-vex
release-vex: ## write what vulnerabilities the programs are affected by, as OpenVEX; needs the internet
	@mkdir -p $(RELEASE_DIR)
	go run $(GOVULNCHECK) -format openvex ./cmd/... >$(RELEASE_DIR)/stack.openvex.json

.PHONY: release-files
release-files: ## put the images' SBOMs and the VEX document beside the binaries, with checksums of all
	@cp $(BUILD)/images/*.spdx.json $(wildcard $(RELEASE_DIR)/*.openvex.json) $(RELEASE_DIR)/bin
	@$(release-sums)

.PHONY: release-notes
release-notes: release-tool ## write the version's notes from CHANGELOG.md
	@mkdir -p $(RELEASE_DIR)
	$(RELEASE) notes -version '$(VERSION)' >$(RELEASE_DIR)/notes.md

.PHONY: release-check
release-check: release-notes ## is the tag the chart's version, and does CHANGELOG.md say what it changes?
	@test '$(VERSION)' = "v$$(sed -n 's/^version: //p' $(CHART)/Chart.yaml)" || \
		{ echo "the tag is $(VERSION), charts/stack/Chart.yaml says $$(sed -n 's/^version: //p' $(CHART)/Chart.yaml)" >&2; exit 1; }

.PHONY: release-github
release-github: release-files ## make the release on GitHub, with notes, binaries and SBOMs; needs gh
	gh release create '$(VERSION)' --verify-tag --notes-file $(RELEASE_DIR)/notes.md \
		$(RELEASE_DIR)/bin/*

# Not from the cache of tests, which does not see the files of other modules.
.PHONY: test-release
test-release: $(TOOLS)/gotestsum ## test the release's tools, and that the workflows only call make
	cd tools/release && GOTESTSUM=$(TOOLS)/gotestsum ../../scripts/gotest -- -count=1

.PHONY: release-rehearsal
release-rehearsal: kube-binaries deps-e2e release-tool $(TOOLS)/helm $(TOOLS)/prometheus $(TOOLS)/cosign $(TOOLS)/registry ## release VERSION=v1.0.0-rc.1 to a registry of our own, install from it on a real Kubernetes, upgrade to the next candidate and go back; needs root
	KEEP='$(KEEP)' KUBE='$(KUBE)' VERSION='$(if $(filter command environment,$(firstword $(origin VERSION))),$(VERSION))' test/e2e/kube/rehearse

$(TOOLS)/cosign: tools/release/go.mod
	@echo "building cosign (some minutes the first time)"
	CGO_ENABLED=0 nice go build -C tools/release -trimpath -ldflags '-s -w' -o $@ github.com/sigstore/cosign/v3/cmd/cosign
$(TOOLS)/registry: tools/release/go.mod tools/release/cmd/registry/main.go
	CGO_ENABLED=0 nice go build -C tools/release -trimpath -ldflags '-s -w' -o $@ ./cmd/registry
