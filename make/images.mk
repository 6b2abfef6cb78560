# Container images. Included by the Makefile.
IMAGE_PROGRAMS   ?= $(notdir $(wildcard $(CURDIR)/cmd/*))
IMAGE_PLATFORMS  ?= linux/amd64,linux/arm64
IMAGE_REPOSITORY ?= localhost/tinkerbell/stack
comma := ,
space := $(subst ,, )

.PHONY: images
images: ## build the images as OCI archives in build/images, without a daemon
	cd images && go run . -programs '$(subst $(space),$(comma),$(strip $(IMAGE_PROGRAMS)))' \
		-platforms '$(IMAGE_PLATFORMS)' -repository '$(IMAGE_REPOSITORY)' -out $(BUILD)/images \
		-version '$(VERSION)' -revision "$$(git rev-parse HEAD)" -epoch "$$(git log -1 --format=%ct)"

.PHONY: test-images
test-images: $(TOOLS)/gotestsum ## test the image builder: two builds are one, the archives say what they hold, the Dockerfile builds
	cd images && $(TOOLS)/gotestsum --format pkgname-and-test-fails --format-hide-empty-pkg -- -count=1 ./...
