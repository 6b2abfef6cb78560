# The chart on a real Kubernetes. Included by the Makefile.
KUBE_VERSION := v1.36.3
KUBE_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
KUBE_PARTS   := kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl
TINK_PARTS   := tink-server tink-controller
KUBE_MODULES := $(CURDIR)/test/e2e/kube/modules
KUBE_FLAGS   := -p 1 -trimpath
# Outside the clone, so that a fresh one need not build them again; by what they are built from.
KUBE_CACHE   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tinkerbell-stack
KUBE_KEY     := $(shell cat $(sort $(wildcard $(KUBE_MODULES)/go.* $(KUBE_MODULES)/*/go.* $(KUBE_MODULES)/*/*.go)) | sha256sum | cut -c1-12)
KUBE         := $(KUBE_CACHE)/kube-$(KUBE_VERSION)-$(KUBE_KEY)
KUBE_DEBIAN  := etcd-server containerd runc containernetworking-plugins
KUBE_FILES   := $(addprefix $(KUBE)/,$(KUBE_PARTS) $(TINK_PARTS) coredns debian/usr/bin/etcd)

# MetalLB and Traefik, which users put before the stack: with a key of their own.
FRONT_MODULES := $(CURDIR)/test/e2e/kube/front
FRONT_KEY     := $(shell cat $(sort $(wildcard $(FRONT_MODULES)/*/go.*)) | sha256sum | cut -c1-12)
FRONT         := $(KUBE_CACHE)/front-$(FRONT_KEY)
METALLB_PARTS := controller speaker
FRONT_FILES   := $(addprefix $(FRONT)/,$(METALLB_PARTS) traefik)

.PHONY: e2e-kube e2e-kube-tools e2e-kube-run
e2e-kube: kube-binaries kube-front e2e-kube-run ## install the chart on a real Kubernetes and boot through it (NODES=2: two nodes and stack-lb; PROXY_MODE=iptables; KEEP=1 leaves it up); needs root
e2e-kube-tools: deps-e2e $(TOOLS)/helm $(TOOLS)/prometheus
e2e-kube-run: e2e-kube-tools
	KEEP='$(KEEP)' NODES='$(NODES)' PROXY_MODE='$(PROXY_MODE)' KUBE='$(KUBE)' FRONT='$(FRONT)' test/e2e/kube/run

.PHONY: e2e-ipvs
e2e-ipvs: $(KUBE)/kube-apiserver $(KUBE)/kube-proxy $(KUBE)/debian/usr/bin/etcd deps-e2e ## stack-lb beside the real kube-proxy in IPVS mode, in a virtual machine whose kernel has it; needs root
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/ ./cmd/stack-lb
	cd test/e2e && CGO_ENABLED=0 go build -o $(BIN)/ ./cmd/bench-failover
	KUBE='$(KUBE)' test/e2e/kube/ipvs

.PHONY: deps-e2e
deps-e2e:
	@scripts/deps e2e

.PHONY: kube-binaries
kube-binaries: $(KUBE_FILES) ## build Kubernetes and Tinkerbell once into the user's cache (some 20 minutes)

.PHONY: kube-front
kube-front: $(FRONT_FILES) ## build MetalLB and Traefik once into the user's cache (some 15 minutes)

# For scripts/ci-kube: where the binaries are, and whether all of them.
.PHONY: kube-dir kube-cached front-dir front-cached
kube-dir:
	@echo $(KUBE)
kube-cached:
	@for file in $(KUBE_FILES); do test -e $$file || exit 1; done
front-dir:
	@echo $(FRONT)
front-cached:
	@for file in $(FRONT_FILES); do test -e $$file || exit 1; done

# kube-build <module> <package> <flags>: aside and renamed, so that what is there is whole.
kube-build = CGO_ENABLED=0 nice go build -C $(1) $(KUBE_FLAGS) -ldflags '$(3)' -o $@.new $(2) && mv $@.new $@

$(addprefix $(KUBE)/,$(KUBE_PARTS)): $(KUBE)/%:
	@mkdir -p $(KUBE)
	@echo "building $* $(KUBE_VERSION) (part $(words $(wildcard $(KUBE_FILES))) of $(words $(KUBE_FILES)) is there)"
	@$(call kube-build,$(KUBE_MODULES),k8s.io/kubernetes/cmd/$*,$(KUBE_LDFLAGS))
$(addprefix $(KUBE)/,$(TINK_PARTS)): $(KUBE)/%:
	@mkdir -p $(KUBE)
	@echo "building $*"
	@$(call kube-build,$(KUBE_MODULES)/tink,github.com/tinkerbell/tink/cmd/$*,-s -w)
$(KUBE)/coredns:
	@mkdir -p $(KUBE)
	@echo "building coredns"
	@$(call kube-build,$(KUBE_MODULES)/coredns,.,-s -w)

$(addprefix $(FRONT)/,$(METALLB_PARTS)): $(FRONT)/%:
	@mkdir -p $(FRONT)
	@echo "building MetalLB's $*"
	@$(call kube-build,$(FRONT_MODULES)/metallb,go.universe.tf/metallb/$*,-s -w)
# Traefik embeds its web interface, which is not in its module: a file of ours in a copy of the module stands for that.
$(FRONT)/traefik:
	@mkdir -p $(FRONT)
	@echo "building traefik"
	@rm -rf $(FRONT)/src && mkdir -p $(FRONT)/src && cp $(FRONT_MODULES)/traefik/go.* $(FRONT)/src && \
		cp -r "$$(go -C $(FRONT_MODULES)/traefik mod download -json github.com/traefik/traefik/v3 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" $(FRONT)/src/traefik && \
		chmod -R u+w $(FRONT)/src && mkdir -p $(FRONT)/src/traefik/webui/static && echo none >$(FRONT)/src/traefik/webui/static/index.html && \
		go -C $(FRONT)/src mod edit -replace github.com/traefik/traefik/v3=./traefik
	@$(call kube-build,$(FRONT)/src,github.com/traefik/traefik/v3/cmd/traefik,-s -w)
	@rm -rf $(FRONT)/src

# Debian's etcd, containerd, runc and network plug-ins, unpacked and not installed, since the packages start servers.
$(KUBE)/debian/usr/bin/etcd:
	@echo "unpacking Debian's etcd, containerd, runc and CNI plug-ins"
	@rm -rf $(KUBE)/debian $(KUBE)/debian.new && mkdir -p $(KUBE)/debian.new && cd $(KUBE)/debian.new && \
		{ apt-get download -qq $(KUBE_DEBIAN) 2>/dev/null || { apt-get update -qq && apt-get download -qq $(KUBE_DEBIAN); }; } && \
		for package in *.deb; do dpkg-deb -x $$package .; done && rm -f *.deb && mv $(KUBE)/debian.new $(KUBE)/debian
