# The chart on a real Kubernetes. Included by the Makefile.
KUBE         := $(BUILD)/kube
KUBE_VERSION := v1.36.3
KUBE_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
KUBE_PARTS   := kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl
TINK_PARTS   := tink-server tink-controller
KUBE_MODULES := $(CURDIR)/test/e2e/kube/modules
KUBE_FLAGS   := -p 1 -trimpath

.PHONY: e2e-kube
e2e-kube: kube-binaries $(TOOLS)/helm $(TOOLS)/prometheus ## install the chart on a real Kubernetes and boot through it (KEEP=1 leaves it up); needs root
	KEEP='$(KEEP)' test/e2e/kube/run

.PHONY: kube-binaries
kube-binaries: $(addprefix $(KUBE)/,$(KUBE_PARTS) $(TINK_PARTS)) $(KUBE)/debian/usr/bin/etcd $(KUBE)/smee $(KUBE)/hegel ## build Kubernetes and Tinkerbell once into build/kube (some 15 minutes)

$(addprefix $(KUBE)/,$(KUBE_PARTS)): $(KUBE)/%: $(KUBE_MODULES)/go.mod
	@echo "building $* $(KUBE_VERSION)"
	CGO_ENABLED=0 nice go build -C $(KUBE_MODULES) $(KUBE_FLAGS) -ldflags '$(KUBE_LDFLAGS)' -o $@ k8s.io/kubernetes/cmd/$*
$(addprefix $(KUBE)/,$(TINK_PARTS)): $(KUBE)/%: $(KUBE_MODULES)/tink/go.mod
	@echo "building $*"
	CGO_ENABLED=0 nice go build -C $(KUBE_MODULES)/tink $(KUBE_FLAGS) -ldflags '-s -w' -o $@ github.com/tinkerbell/tink/cmd/$*
$(KUBE)/smee $(KUBE)/hegel: $(KUBE)/%: test/e2e/go.mod
	@echo "building $*"
	CGO_ENABLED=0 nice go build -C test/e2e $(KUBE_FLAGS) -ldflags '-s -w' -o $@ github.com/tinkerbell/$*/cmd/$*

# Debian's etcd, containerd, runc and network plug-ins, unpacked and not installed, since the packages start servers.
$(KUBE)/debian/usr/bin/etcd:
	@mkdir -p $(KUBE)/debian
	@echo "unpacking Debian's etcd, containerd, runc and CNI plug-ins"
	cd $(KUBE)/debian && apt-get download -qq etcd-server containerd runc containernetworking-plugins && \
		for package in *.deb; do dpkg-deb -x $$package .; done && rm -f *.deb
