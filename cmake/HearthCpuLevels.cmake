# One binary for every x86-64 CPU. All of hearth is compiled for plain x86-64, src/ops/cpu too; the files there that
# compute are compiled again for each of HEARTH_CPU_LEVELS, and ops/cpu/level.c takes the best copy at start-up.
#
# A copy becomes one object in which every name is local but its way in, cpu_install_<level>: no function of one copy can
# be linked into another, and new files and functions need no list. The objects may still use what exists once (cpu.c,
# blas.c, base).
#
# One copy is enough, and the build shorter, where the machine that builds also runs it (HEARTH_NATIVE, sanitizers).
set(HEARTH_CPU_LEVELS "v3;v4" CACHE STRING "x86-64 levels beside the plain one that CPU ops are compiled for (v3, v4)")
set(hearth_levels ${HEARTH_CPU_LEVELS})
if(HEARTH_NATIVE OR HEARTH_SANITIZE OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" OR NOT CMAKE_OBJCOPY)
    set(hearth_levels "")
endif()

function(hearth_cpu_level level)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/cpu/*.c)
    list(FILTER sources EXCLUDE REGEX "/(cpu|blas|level)\\.c$")
    set(copy hearth_cpu_${level})
    set(object ${CMAKE_BINARY_DIR}/cpu_${level}.o)
    add_library(${copy} OBJECT ${sources})
    target_link_libraries(${copy} PRIVATE hearth_flags hearth_lib_blas)
    target_compile_options(${copy} PRIVATE -march=x86-64-${level})
    target_compile_definitions(${copy} PRIVATE CPU_INSTALL=cpu_install_${level})
    add_custom_command(OUTPUT ${object} DEPENDS ${copy} $<TARGET_OBJECTS:${copy}>
                       COMMAND ${CMAKE_LINKER} -r -o ${object} $<TARGET_OBJECTS:${copy}>
                       COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=cpu_install_${level} ${object}
                       COMMAND_EXPAND_LISTS VERBATIM)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    string(TOUPPER ${level} upper)
    target_sources(hearth_ops PRIVATE ${object})
    target_compile_definitions(hearth_ops PRIVATE HEARTH_CPU_${upper}=1)
endfunction()

foreach(level ${hearth_levels})
    hearth_cpu_level(${level})
endforeach()
if(HEARTH_NATIVE)
    target_compile_definitions(hearth_ops PRIVATE HEARTH_CPU_ONLY="native")
endif()
