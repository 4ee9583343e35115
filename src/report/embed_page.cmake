# SPDX-License-Identifier: Apache-2.0
# cmake -D PAGE=folder -D DYGRAPHS=folder -D SCRIPTS=a.js,b.js -D OUT=file.cc -P embed_page.cmake
# Puts page.html together with its styles and scripts and writes it as two C++ strings: what comes
# before the data and what comes after it.

function(fill_in name file)
  file(READ ${file} text)
  if(text MATCHES "</(script|style)")
    message(FATAL_ERROR "${file} holds a closing tag that would end its element")
  endif()
  string(REPLACE "@${name}@" "${text}" page "${page}")
  set(page "${page}" PARENT_SCOPE)
endfunction()

function(quote name text out)
  # Compilers limit the length of one literal; adjacent ones are joined.
  set(chunk 12000)
  string(LENGTH "${text}" length)
  set(code "const std::string_view ${name} =")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} ${chunk} piece)
    string(APPEND code "\n    R\"presum_page(${piece})presum_page\"")
    math(EXPR at "${at} + ${chunk}")
  endwhile()
  set(${out} "${code};\n" PARENT_SCOPE)
endfunction()

file(READ ${PAGE}/page.html page)
fill_in(DYGRAPHS_LICENSE ${DYGRAPHS}/LICENSE.txt)
fill_in(DYGRAPHS_CSS ${DYGRAPHS}/dygraph.min.css)
fill_in(PAGE_CSS ${PAGE}/page.css)
fill_in(DYGRAPHS_JS ${DYGRAPHS}/dygraph.min.js)
string(REPLACE "," ";" scripts "${SCRIPTS}")
foreach(script IN LISTS scripts)
  file(READ ${PAGE}/${script} text)
  file(APPEND ${OUT}.js "${text}\n")
endforeach()
fill_in(PAGE_JS ${OUT}.js)
file(REMOVE ${OUT}.js)

string(FIND "${page}" "@DATA@" cut)
math(EXPR after "${cut} + 6")
string(SUBSTRING "${page}" 0 ${cut} before_text)
string(SUBSTRING "${page}" ${after} -1 after_text)
quote(kPageBeforeData "${before_text}" before)
quote(kPageAfterData "${after_text}" after)
file(WRITE ${OUT} "// Made by embed_page.cmake.
#include \"report/page_assets.h\"

namespace presum::report {

${before}
${after}
}  // namespace presum::report
")
