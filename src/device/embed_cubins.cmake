# SPDX-License-Identifier: Apache-2.0
# cmake -D CUBINS=folder -D OUT=file -P embed_cubins.cmake: a source that holds what tools/cubins.py
# wrote; without a folder, nothing.
if(CUBINS)
  file(GLOB files ${CUBINS}/*.sm_*.cubin ${CUBINS}/*.compute_*.ptx)
endif()
set(symbols "")
set(list "")
set(n 0)
foreach(file IN LISTS files)
  string(REGEX MATCH "([a-z]+)\\.(sm|compute)_([0-9]+)\\.(cubin|ptx)$" ignored ${file})
  set(is_ptx false)
  if(CMAKE_MATCH_4 STREQUAL ptx)
    set(is_ptx true)
  endif()
  string(APPEND symbols "asm(\".pushsection .rodata\\n.balign 64\\npresum_image_${n}:\\n"
    ".incbin \\\"${file}\\\"\\n.byte 0\\n.popsection\");\n"
    "extern \"C\" __attribute__((visibility(\"hidden\"))) const char presum_image_${n}[];\n")
  string(APPEND list "    {\"${CMAKE_MATCH_1}\", ${CMAKE_MATCH_3}, ${is_ptx}, presum_image_${n}},\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "#include \"device/driver.h\"\n\n${symbols}
namespace presum::device {

std::span<const Image> images() {
")
if(n EQUAL 0)
  file(APPEND ${OUT} "  return {};\n}\n")
else()
  file(APPEND ${OUT} "  static const Image all[] = {\n${list}  };\n  return all;\n}\n")
endif()
file(APPEND ${OUT} "\n}  // namespace presum::device\n")
