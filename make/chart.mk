# The Helm chart. Included by the Makefile.
CHART := $(CURDIR)/charts/stack

.PHONY: chart
chart: chart-package $(TOOLS)/helm $(TOOLS)/helm-unittest $(TOOLS)/kubeconform $(TOOLS)/promtool $(TOOLS)/gotestsum ## lint, render and test the Helm chart
	cd tools/helm && go run ./cmd/chartdoc -check $(CHART)
	$(TOOLS)/helm lint --strict --set preset=tinkerbell $(CHART) $(BUILD)/charts/stack-*.tgz
	$(TOOLS)/helm-unittest $(CHART)
	cd tools/helm && TOOLS=$(TOOLS) GOTESTSUM=$(TOOLS)/gotestsum ../../scripts/gotest -- -count=1

.PHONY: chart-docs
chart-docs: ## make the chart's values.schema.json and README table from values.yaml
	cd tools/helm && go generate ./cmd/chartdoc

.PHONY: chart-package
chart-package: release-tool ## package the chart into build/charts, with the images that its values name
	@rm -rf $(BUILD)/charts && mkdir -p $(BUILD)/charts
	$(RELEASE) chart $(CHART_OF_COMMIT) -to $(BUILD)/charts/stack

$(TOOLS)/helm: tools/helm/go.mod
	@echo "building helm (some minutes the first time)"
	go build -C tools/helm -trimpath -ldflags '-s -w' -o $@ helm.sh/helm/v4/cmd/helm
$(TOOLS)/helm-unittest: tools/helm/go.mod
	go build -C tools/helm -trimpath -ldflags '-s -w' -o $@ github.com/helm-unittest/helm-unittest/cmd/helm-unittest
$(TOOLS)/kubeconform: tools/helm/go.mod
	go build -C tools/helm -trimpath -ldflags '-s -w' -o $@ github.com/yannh/kubeconform/cmd/kubeconform
# Debian's, unpacked and not installed, since the package starts a server. Without apt the rules are not tested.
$(TOOLS)/prometheus: $(TOOLS)/promtool
$(TOOLS)/promtool:
	@mkdir -p $(TOOLS) $(BUILD)/chart/promtool
	@if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then \
		echo "unpacking Debian's promtool and prometheus, for the alerts' tests"; \
		cd $(BUILD)/chart/promtool && { apt-get download -qq prometheus 2>/dev/null || \
			{ apt-get update -qq && apt-get download -qq prometheus; }; } && dpkg-deb -x prometheus_*.deb . && \
		cp usr/bin/promtool usr/bin/prometheus $(TOOLS)/ && cd .. && rm -rf promtool; \
	else echo "no apt-get: the alerts' rules are not tested"; fi
