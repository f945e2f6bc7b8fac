# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tandem for Conan 2: conan create . -o "&:shared=True"."""

import os

from conan import ConanFile
from conan.tools.build import stdcpp_library
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"


class Tandem(ConanFile):
    name = "tandem"
    description = "Attention, forward and backward, on any GPU, behind one C API"
    license = "MIT OR Apache-2.0"
    topics = ("attention", "gpu", "vulkan", "cuda")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    # vulkan: "conan" takes the shader compiler and headers from packages, "system" from the machine.
    # cuda: wants nvcc on the machine; a library of its own where the package is shared.
    options = {
        "shared": [True, False],
        "fPIC": [True, False],
        "vulkan": ["conan", "system", "off"],
        "cuda": [True, False],
    }
    default_options = {"shared": False, "fPIC": True, "vulkan": "conan", "cuda": False}
    implements = ["auto_shared_fpic"]

    def layout(self):
        cmake_layout(self, src_folder="src")

    def requirements(self):
        if self.options.vulkan == "conan":
            self.requires("vulkan-headers/[>=1.4.309]", transitive_headers=True)
            self.requires("volk/[>=1.4.309]")

    def build_requirements(self):
        if self.options.vulkan == "conan":
            self.tool_requires("glslang/[>=1.4.309]")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        define = toolchain.cache_variables
        define["TANDEM_VULKAN"] = "OFF" if self.options.vulkan == "off" else "ON"
        define["TANDEM_CUDA"] = "ON" if self.options.cuda else "OFF"
        define["TANDEM_PYTHON"] = "OFF"
        for around in ("TOOLS", "TESTS", "EXAMPLES"):
            define[f"TANDEM_{around}"] = "OFF"
        if self.options.vulkan == "conan":
            include = self.dependencies["vulkan-headers"].cpp_info.includedirs[0]
            define["TANDEM_VULKAN_INCLUDE_DIR"] = include
            define["TANDEM_VOLK_INCLUDE_DIR"] = self.dependencies["volk"].cpp_info.includedirs[0]
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        doc = os.path.join(self.package_folder, "share", "doc", "tandem")
        copy(self, "*", doc, os.path.join(self.package_folder, "licenses"))
        # CMakeDeps makes these of package_info().
        for folder in (("lib", "cmake"), ("lib", "pkgconfig"), ("share",)):
            rmdir(self, os.path.join(self.package_folder, *folder))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "tandem")
        self.cpp_info.set_property("cmake_target_name", "tandem::tandem")
        self.cpp_info.set_property("pkg_config_name", "tandem")
        self.cpp_info.libs = ["tandem"]
        if self.settings.os == "Windows" and self.options.shared:
            self.cpp_info.defines = ["TANDEM_SHARED"]
        if self.settings.os in ("Linux", "FreeBSD") and not self.options.shared:
            self.cpp_info.system_libs = ["pthread", "dl", "m"]
            runtime = stdcpp_library(self)  # for programs that a C compiler links
            if runtime:
                self.cpp_info.system_libs.append(runtime)
            if self.options.cuda:
                self.cpp_info.system_libs += ["cudart_static", "rt"]
